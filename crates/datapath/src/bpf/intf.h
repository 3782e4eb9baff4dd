/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the data path and the daemon share: keys, table entries, log records, counters. The Rust
 * side is generated from these declarations.
 */
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

struct service {
	__u32 id;   /* index of the service in the configuration */
	__u32 held; /* whether its scheme holds output: its connections get a gate */
};

struct address_key {
	__u8 address[16];
};

/* What this node does for a share of the flows. */
enum role {
	ROLE_NONE = 0,	  /* starting or fenced: nothing passes in or out */
	ROLE_BACKUP = 1,  /* logs the clients' segments and relays them to the primary */
	ROLE_PRIMARY = 2, /* serves */
};

/* Written by the daemon with one 64-bit store, read with one 64-bit load. */
struct role_entry {
	__u32 epoch;
	__u8 role;
	__u8 duplex; /* primary: a backup is alive, control segments go through it */
	__u16 pad;
} __attribute__((aligned(8)));

/* The flows whose roles are decided together. Roles belong to connections: a flow's share is a hash
 * of its client, so that each node may serve one share and back up the other (C6). */
struct share {
	struct role_entry role;
	/* A primary emits only before this instant (CLOCK_BOOTTIME, ns). Invariant 3. */
	__u64 lease_until_ns;
	/* A backup logs only while its daemon lives; later it relays without logging: the primary
	 * has gone simplex by then. CLOCK_BOOTTIME, ns. */
	__u64 journal_until_ns;
	/* A backup that is about to be handed the flows of held services keeps what their clients ask for
	 * to itself before this instant: logged, and not relayed. CLOCK_BOOTTIME, ns. */
	__u64 parked_until_ns;
	/* Set by the data path in the instant a server crashes (C4), cleared by the daemon with
	 * the next role: while set nothing leaves. */
	__u8 crash_fenced;
};

#define SHARES 2

struct relay_path {
	__u32 ifindex;
	__u8 dst[6];
	__u8 src[6];
};

/* One page, mapped into the daemon. */
struct ctl {
	struct share shares[SHARES];
	/* Frames on the service link that did not come from the peer. */
	__u64 service_frames;
	/* Those of them that were for a service: clients send here. */
	__u64 client_frames;
	struct relay_path relay;
	__u8 peer_mac[2][6]; /* the peer's MAC on the service link and on the cluster link */
	__u8 holding;	     /* this node answers for the service addresses */
	/* Set by the data path when it notes a handshake, cleared by the daemon when it forgets all
	 * flows. A primary that never was a backup has none, and need not look for any. */
	__u8 knows_flows;
};

enum flow_state {
	FLOW_TRACKED = 0,  /* backup: logged and relayed. After promotion: logged only, until adopted */
	FLOW_SIMPLEX = 1,  /* not protected: passes unlogged */
	FLOW_ADOPTING = 2, /* a child of the listener exists or is about to: segments are logged only */
	FLOW_OPEN = 3,	   /* adopted: the client talks to the local socket */
	/* A child of the daemon's own listener exists or is about to: what the client lacks of logged
	 * replies is written into it. Segments are logged, and go on to the child once it is born. */
	FLOW_DELIVERING = 4,
};

/* The child of a flow that is adopted or delivered. A byte of its own in `struct flow`, so that
 * whoever changes it cannot undo what another processor does to the flags. */
enum child {
	CHILD_NONE = 0, /* not born yet, or forgotten: the flow gets another one */
	CHILD_BORN = 1, /* its listener has accepted it */
	CHILD_HELD = 2, /* and it has a gate, and needs its place in the socket map */
};

#define OPT_WSCALE 0x01
#define OPT_SACK 0x02
#define OPT_TSTAMP 0x04
#define OPT_ECN 0x08

#define FLOW_SERVER_FIN 0x01 /* the server's FIN passed; server_fin is its sequence number */
#define FLOW_CLIENT_FIN 0x02 /* the client's FIN was logged; client_fin is its sequence number */
#define FLOW_DIVERGED 0x04   /* the server ended the stream before the client's position */
#define FLOW_RENEWED 0x08    /* a SYN with the flow's addresses passed: see the table of handshakes */

struct flow {
	/* Outstream bytes the client has acknowledged, FIN included: una - (iss + 1), unwrapped. */
	__u64 acked;
	/* Adopted: outstream bytes the server must still repeat before the first new one. */
	__u64 swallow;
	__u32 irs;
	__u32 iss;
	__u32 una;	/* highest acknowledgement seen from the client; never steps back */
	__u32 rcv_max;	/* end of the highest client segment seen */
	__u32 data_max;	/* the same of those with payload or FIN: an acknowledgement tells of bytes that
			 * have been sent, and may have been lost */
	__u32 rcv_run;	/* from here to rcv_max no byte is missing; later than need be */
	__u32 window;	/* the client's latest window, unscaled */
	__u32 snd_edge;	/* end of the furthest window the client has opened */
	__u32 tsval;	/* the client's latest TSval */
	__u32 ts_delta; /* largest (client's TSecr - our clock in ms): the server's TSval clock */
	__u32 client_fin;
	__u32 server_fin;
	__u32 epoch;	  /* the epoch in which the flow became duplex */
	__u32 birth_seq;  /* adopting, delivering: first sequence number the child expects */
	__u32 birth_ack;  /* adopting, delivering: first sequence number the child sends */
	__u32 replay_end; /* adopting: the child's acknowledgement that opens the flow */
	__u32 child_ack;  /* adopting: the child's latest acknowledgement */
	__u32 child_edge; /* adopting: right edge of the child's window */
	__u32 snd_max;	  /* adopted: end of the highest segment the child has sent */
	__u32 child_nxt;  /* adopted: what the child had sent, in its own view, when last asked */
	__u32 seen_s;	  /* when a segment of it last passed this node, CLOCK_BOOTTIME in s */
	__u32 parked;	  /* the low half of the parked_until_ns during which something was parked, or 0 */
	__u32 parked_from; /* that is the client's bytes from here on */
	__u32 service;
	__u16 mss;	 /* the client's */
	__u8 snd_wscale; /* the client's window scale: shifts windows we receive */
	__u8 rcv_wscale; /* the server's: shifts windows it sends */
	__u8 options;
	__u8 state;
	__u8 flags;
	__u8 child; /* enum child */
};

/* Asks for a flow's state, and for what belongs to it while it is adopted, to be as in `flow`. */
struct flow_change {
	struct flow flow;
	struct flow_key key;
	__u32 pad;
};

/* A connection whose handshake is under way: SYN seen, perhaps SYN-ACK. Kept apart from the flows
 * and evicted oldest first, so that a SYN flood can never cost an established flow. */
struct embryo {
	__u32 irs;
	__u32 iss;
	__u32 client_tsval;
	__u32 server_tsval;
	__u32 server_ts_ms; /* our clock when server_tsval passed */
	__u32 syn_ms;	    /* our clock when the SYN passed */
	__u16 client_window; /* of the SYN: never scaled */
	__u16 client_mss;
	__u16 server_window; /* of the SYN-ACK: never scaled */
	__u16 server_mss;
	__u8 client_wscale;
	__u8 client_options; /* OPT_* offered */
	__u8 server_wscale;
	__u8 server_options; /* OPT_* agreed */
	__u8 answered;	     /* the SYN-ACK passed through this node */
	__u8 fast_open;	     /* data travelled with the SYN */
	__u8 pad[2];
};

/* A connection that passes this backup unprotected: it began before the node joined, or its
 * handshake was forgotten in a flood. Known so that it can be reset, rather than left to wait for
 * ever, when the primary dies. The oldest gives way. */
struct stray {
	__u32 una;   /* the client's latest acknowledgement */
	__u32 flags; /* FLOW_SERVER_FIN, FLOW_CLIENT_FIN; both: over, kept to know its last segments */
};

/* Log records, oldest first. Payload follows the header. */
enum record_kind {
	RECORD_OPENED = 1,  /* handshake complete: seq = IRS */
	RECORD_SEGMENT = 2, /* client data and/or FIN: seq = first byte, irs tells its connection. Two
			     * processors may log a handshake's end and the first data in either order */
	RECORD_RESET = 3,   /* the client sent RST with this seq */
	RECORD_CLOSED = 4,  /* both sides ended the connection, or the server reset it */
	RECORD_BORN = 5,    /* the adopted child reached the accept queue */
	RECORD_CHILD = 6,   /* the adopting child acknowledged: seq = ack, len = window edge */
	RECORD_CRASH = 7,   /* a server died by a signal (seq), or its listener was closed over connections
			     * that nobody had accepted (seq = 0): this node fenced itself */
	RECORD_DIVERGED = 8, /* an adopted server ended its stream too early */
	RECORD_REPLY = 9 /* backup: a whole reply of the primary's, passed on: seq = first byte */
};

#define RECORD_FIN 0x01

struct record {
	struct flow_key key;
	__u32 seq;
	__u32 len; /* payload bytes that follow */
	__u32 irs;
	__u32 service;
	__u8 kind;
	__u8 flags;
	__u16 pad;
};

/* The gate of one socket; lives and dies with it. Sequence numbers are the outstream's, modulo
 * 2^32; a FIN occupies the one behind the last byte. */
struct gate {
	__u32 released; /* what lies before it may leave; at most captured, and a FIN; steps back only
			 * with what is taken back */
	__u32 ahead;	/* what lies before it may leave, be it captured or not; never steps back */
	__u32 captured; /* what lies before it has been given to the daemon */
	__u32 offered;	/* length of the last capture of a write, in bytes */
	__u8 open;	/* everything may leave, nothing is captured any more */
	__u8 opened;	/* by an order: TCP has been told, and writes take the ordinary way */
	__u8 lost;	/* a write could not be captured: later ones are not either */
	__u8 swallows;	/* born with output to be swallowed: the flow's entry says how much */
	__u8 unread;	/* the server left bytes unread; reported, and nobody has rung since */
	__u8 adopted;	/* its segments are judged by its flow's entry, too: none goes by the backup */
	__u8 preceded;	/* something may have left before it was captured: see `ahead` */
	__u8 pad;
	__u32 whole;	/* the end of the latest reply that gate_out let go by way of the backup */
	struct flow_key key;
};

/* What servers do with held sockets, oldest first. Payload follows the header. */
enum output_kind {
	OUTPUT_BYTES = 1,   /* the server wrote: its first byte is `seq`; what had been reported from
			     * there on is void */
	OUTPUT_ENDED = 2,   /* shutdown or close: the FIN is at `seq` */
	OUTPUT_GONE = 3,    /* the connection is over; `seq` is behind the last byte written */
	OUTPUT_ABORTED = 4, /* the same, by a reset of either side */
	OUTPUT_LOST = 5,    /* a write at `seq` found the ring full and is held, but not captured */
	OUTPUT_UNHELD = 6,  /* a connection could not get a gate: all of its output leaves at once */
	OUTPUT_CRASHED = 8, /* like OUTPUT_ENDED, but the server did not mean it: it crashed, and the
			     * kernel closes for it */
	OUTPUT_UNREAD = 7,  /* the server read, and left bytes unread: see `ring` */
};

struct output {
	__u32 kind;
	__u32 seq;
	__u32 length; /* of the payload, in bytes */
	__u32 una;    /* of OUTPUT_BYTES, if `gated`: the client has acknowledged what lies before it */
	__u32 gated;  /* all that has left did so by an order, or by way of the backup */
	struct flow_key key;
};

/* What the daemon asks of a gate. An order has the form of a TCP segment in the client's name: the
 * edge stands in the place of the sequence number, the order in that of the acknowledgement, and
 * there are TCP_ORDER_OPTIONS bytes of options to be filled in. Its IP protocol is one that nobody
 * relays. */
enum order {
	ORDER_RELEASE = 1, /* what lies before the edge may leave */
	ORDER_OPEN = 2,	   /* so may everything else, from now on */
	ORDER_AHEAD = 3,   /* so may what is not written yet, before the edge: whatever it will be */
};

/* For experiments (RFC 3692): a client's packet of this protocol ends at the backup. */
#define IPPROTO_ORDER 253
#define TCP_ORDER_OPTIONS 12

enum limit {
	REPLY_MAX = 1460, /* payload of the longest reply that goes by way of the backup, in bytes: one
			   * packet on any Ethernet */
};

/* Why a frame did not take its ordinary way, and what passed. */
enum counter {
	COUNT_RELAYED,		/* client segments sent on to the primary */
	COUNT_LOGGED,		/* segments appended to the log ring */
	COUNT_LOGGED_BYTES,	/* their payload */
	COUNT_BOUNCED_OUT,	/* control segments sent to the backup */
	COUNT_BOUNCED_IN,	/* the peer's control segments passed on to clients */
	COUNT_REDIRECTED,	/* client segments that missed the backup and were sent there */
	COUNT_HELD,		/* segments logged only, while their flow is taken over */
	COUNT_CHILD_SILENCED,	/* segments of a child that is not open yet; resets while the daemon
				 * delivers */
	COUNT_SYN_ANSWERED,	/* SYNs answered in the dead primary's words */
	COUNT_ACK_CLAMPED,	/* acknowledgements beyond what an adopted child has sent */
	COUNT_SWALLOWED_BYTES,	/* repeated output the client already had */
	COUNT_ICMP_RELAYED,	/* ICMP errors that followed their flow */
	COUNT_UNTRACKED,	/* relayed unlogged: flow unknown or simplex */
	COUNT_DROP_NO_ROLE,	/* segment for a service while this node has no role */
	COUNT_DROP_RING_FULL,	/* log ring full: the client will send again */
	COUNT_DROP_CHECKSUM,	/* bad TCP checksum */
	COUNT_DROP_MALFORMED,	/* lengths or offsets that contradict each other */
	COUNT_DROP_FRAGMENT,	/* IP fragment for a service address */
	COUNT_DROP_WILD,	/* sequence number far from the flow's */
	COUNT_DROP_NOT_PRIMARY, /* local output for a service this node is not primary of */
	COUNT_DROP_FENCED,	/* output after the lease had run out */
	COUNT_DROP_CRASHED,	/* output of a crashed server (C4) */
	COUNT_DROP_STRANGER,	/* service output that came in from somebody else than the peer */
	COUNT_DROP_RETURNED,	/* sent here by the peer to be logged, while nothing is logged */
	COUNT_ADOPT_STRAY,	/* forged segment that fits no flow under adoption */
	COUNT_ADOPT_OCCUPIED,	/* no listener for a flow, or another socket in its place */
	COUNT_ADOPT_REFUSED,	/* the kernel refused the flow's options */
	COUNT_FLOWS_FULL,	/* flow table full: the new flow is simplex */
	COUNT_FAST_OPEN,	/* data in the SYN: the new flow is simplex */
	COUNT_ARP_SILENCED,	/* requests for a service address this node does not hold */
	COUNT_ARP_REWRITTEN,	/* own requests that would have claimed a service address */
	COUNT_REDIRECT_FAILED,
	COUNT_PARKED,		/* clients' segments logged for the next primary, and not relayed */
	COUNT_HELD_FLOWS,	/* connections that got a gate */
	COUNT_UNHELD_FLOWS,	/* connections of a held service that could not get one */
	COUNT_CAPTURED_BYTES,	/* from the server's writes */
	COUNT_CUT_SHORT,	/* writes of which TCP took only a part */
	COUNT_RECAPTURED_BYTES, /* from segments, where a write had been cut short */
	COUNT_REFUSED,		/* segments that TCP was told to keep */
	COUNT_STRADDLING,	/* of these: begin before the released edge */
	COUNT_GATE_FENCED,	/* held segments that only the fence on the link refused */
	COUNT_REPLY_OUT,	/* whole replies sent to the backup, for it to pass on */
	COUNT_REPLY_IN,		/* the peer's whole replies logged and passed on to clients */
	COUNT_REPLY_STALE,	/* the peer's replies for another position than the client's: dropped */
	COUNT_ORDERS,		/* orders carried out */
	COUNT_ORDERS_SENT,	/* orders sent on to the primary */
	COUNT_ORDERS_STALE,	/* orders that changed nothing: given twice, or late */
	COUNT_ORDERS_STRAY,	/* orders for a socket that is gone or has no gate, or for no primary */
	COUNT_OUTPUT_LOST,	/* writes that found the output ring full */
	COUNT_EVENTS_LOST,	/* events that found the output ring full */
	COUNTERS
};

/* Names every type above that no map or global uses, so that the Rust side is generated too. */
struct generated {
	struct record record;
	struct flow_change flow_change;
	enum role role;
	enum flow_state state;
	enum child child;
	enum record_kind kind;
	enum counter counter;
	struct output output;
	enum output_kind output_kind;
	enum order order;
	enum limit limit;
};
