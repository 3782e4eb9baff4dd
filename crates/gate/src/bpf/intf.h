/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What the gate's programs and the daemon share. The Rust side is generated from it. */
#pragma once

/* A flow as seen from the service: addresses in network order, IPv4 as ::ffff:a.b.c.d, ports in
 * network order. */
struct flow_key {
	__u8 client[16];
	__u8 server[16];
	__be16 client_port;
	__be16 server_port;
};

struct service_key {
	__u8 address[16];
	__be16 port;
	__u16 pad;
};

/* The gate of one socket; lives and dies with it. Sequence numbers are the outstream's, modulo
 * 2^32; a FIN occupies the one behind the last byte. */
struct gate {
	__u32 released;	/* what lies before it may leave; never steps back */
	__u32 captured;	/* what lies before it has been given to the daemon */
	__u32 offered;	/* length of the last capture of a write, in bytes */
	__u8 open;	/* everything may leave, nothing is captured any more */
	__u8 lost;	/* a write could not be captured: later ones are not either */
	__u16 pad;
	struct flow_key key;
};

enum record_kind {
	RECORD_OUTPUT = 1, /* the server wrote: payload follows, its first byte is `seq`; what had been
			    * reported from there on is void */
	RECORD_ENDED = 2,  /* shutdown or close: the FIN is at `seq` */
	RECORD_GONE = 3,   /* the connection is over; `seq` is behind the last byte written */
	RECORD_ABORTED = 4,/* the same, by a reset of either side */
	RECORD_LOST = 5,   /* a write at `seq` found the ring full and is held, but not captured */
};

struct record {
	__u32 kind;
	__u32 seq;
	__u32 length; /* of the payload, in bytes */
	struct flow_key key;
};

/* What the daemon asks for. An order is a bare ACK in the client's name, written to the order
 * device, with the order in its acknowledgement number. */
enum order {
	ORDER_RELEASE = 1, /* what lies before the sequence number may leave */
	ORDER_OPEN = 2,	   /* so may everything else, from now on */
};

/* Mapped into the daemon. */
struct ctl {
	__u32 hold; /* whether connections that begin now get a gate */
	__u32 pad;
};

enum counter {
	COUNT_HELD_FLOWS,      /* connections that got a gate */
	COUNT_UNHELD_FLOWS,    /* connections of a held service that could not get one */
	COUNT_CAPTURED_BYTES,  /* from the server's writes */
	COUNT_CUT_SHORT,       /* writes of which TCP took only a part */
	COUNT_RECAPTURED_BYTES,/* from segments, where a write had been cut short */
	COUNT_REFUSED,	       /* segments that TCP was told to keep */
	COUNT_STRADDLING,      /* of these: begin before the released edge */
	COUNT_ORDERS,	       /* orders carried out */
	COUNT_ORDERS_STRAY,    /* orders for a socket that is gone or has no gate */
	COUNT_LOST,	       /* writes that found the ring full */
	COUNT_RECORDS_FAILED,  /* events that found the ring full */
	COUNT_FENCED,	       /* segments that only the fence on the link refused */
	COUNTERS,
};

/* Makes the generator emit types that no map mentions. */
struct generated {
	struct record record;
	enum record_kind record_kind;
	enum order order;
	enum counter counter;
};
