/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Which segments may leave. TCP's own transmission is told -EPERM for one that may not: it keeps the
 * bytes as unsent, does not shrink its congestion window as it would for a full queue, and tries
 * again with the next acknowledgement, or when its probe timer fires.
 */
#pragma once

#define TCP_FIN 0x01
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define IP4_HEADER 20
#define IP6_HEADER 40

struct tcp_header {
	__be16 source;
	__be16 destination;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
} __attribute__((packed));

/* Where TCP begins in a packet that this host's TCP has built, its IP header at `ip`: 0 if it is
 * none. */
static __always_inline __u32 tcp_offset(struct __sk_buff *skb, __u32 ip)
{
	__u8 first;

	if (bpf_skb_load_bytes(skb, ip, &first, sizeof(first)))
		return 0;
	/* IPv6 extension headers: a socket may have asked for them (RFC 3542). */
	if (first >> 4 == 6) {
		__u8 next;
		__u32 at = ip + IP6_HEADER;
		int i;

		if (bpf_skb_load_bytes(skb, ip + 6, &next, sizeof(next)))
			return 0;
		for (i = 0; i < 4 && next != IPPROTO_TCP; i++) {
			__u8 extension[2];

			if (next != 0 && next != 43 && next != 60)
				return 0;
			if (bpf_skb_load_bytes(skb, at, extension, sizeof(extension)))
				return 0;
			at += 8 + extension[1] * 8;
			next = extension[0];
		}
		return next == IPPROTO_TCP ? at : 0;
	}
	return ip + (first & 15) * 4;
}

enum verdict { PASS, REFUSE };

/*
 * What capture() could not see: see there. The first segment that TCP would send next is always
 * seen here, whether it may leave or not.
 *
 * The segment is copied whole, with bytes that had been captured before: with a source offset
 * behind the linear part bpf_dynptr_copy() reads what is not the packet (Linux 6.18:
 * skb_pointer_if_linear() subtracts unsigned). The payload begins where the linear part ends.
 */
static __always_inline void recapture(struct __sk_buff *skb, struct gate *gate, __u32 payload,
				      __u32 seq, __u32 end)
{
	struct record record = { .kind = RECORD_OUTPUT, .seq = seq, .key = gate->key };
	struct bpf_dynptr packet, room;
	__u32 length = end - seq;

	if (gate->lost)
		return;
	record.length = length;
	if (!has_room(length) || bpf_dynptr_from_skb(skb, 0, &packet)) {
		lose(gate, gate->captured);
		return;
	}
	if (bpf_ringbuf_reserve_dynptr(&output_ring, sizeof(record) + length, 0, &room) ||
	    bpf_dynptr_write(&room, 0, &record, sizeof(record), 0) ||
	    bpf_dynptr_copy(&room, sizeof(record), &packet, payload, length)) {
		bpf_ringbuf_discard_dynptr(&room, 0);
		lose(gate, gate->captured);
		return;
	}
	bpf_ringbuf_submit_dynptr(&room, 0);
	gate->captured = end;
	/* What TCP has taken is known now. */
	gate->offered = 0;
	count_by(COUNT_RECAPTURED_BYTES, length);
}

static __always_inline enum verdict judge(struct __sk_buff *skb, __u32 ip, struct gate *gate)
{
	__u32 at = tcp_offset(skb, ip), payload, seq, end;
	struct tcp_header tcp;

	/* What cannot be read has not been judged. */
	if (!at || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return REFUSE;
	/* The server threw its own output away: nothing is left that could be held. */
	if (tcp.flags & TCP_RST)
		return PASS;
	payload = at + (tcp.offset >> 4) * 4;
	seq = bpf_ntohl(tcp.seq);
	end = seq + skb->len - payload;
	if (seq_after(end, gate->captured) && !seq_after(seq, gate->captured))
		recapture(skb, gate, payload, seq, end);
	if (tcp.flags & TCP_FIN)
		end++;
	if (end == seq || !seq_after(end, gate->released))
		return PASS;
	count(COUNT_REFUSED);
	if (seq_after(gate->released, seq))
		count(COUNT_STRADDLING);
	return REFUSE;
}

static __always_inline struct gate *gate_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	return sk ? bpf_sk_storage_get(&gates, sk, NULL, 0) : NULL;
}

SEC("cgroup_skb/egress")
int gate_out(struct __sk_buff *skb)
{
	struct gate *gate = gate_of(skb);

	return !gate || gate->open || judge(skb, 0, gate) == PASS;
}

/* The same on the link itself, for the time in which there is no daemon: gate_out goes with it, and
 * TCP would send what it keeps. */
SEC("tc")
int gate_fence(struct __sk_buff *skb)
{
	struct gate *gate = gate_of(skb);

	if (!gate || gate->open || judge(skb, ETH_HLEN, gate) == PASS)
		return TC_ACT_OK;
	count(COUNT_FENCED);
	return TC_ACT_STOLEN;
}
