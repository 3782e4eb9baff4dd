/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Orders to a gate. An order moves the released edge and then goes on to the socket as an
 * acknowledgement that says nothing new: what makes TCP try again at once. All but the addresses is
 * filled in from the socket itself, so there is no position to be followed and no order can be out
 * of date.
 *
 * The daemon writes an order into the adoption device. On the flow's primary it is carried out
 * there. On its backup it goes on to the primary as a frame, which is believed like every frame of
 * the peer's: by its Ethernet address. So a release wakes nobody on the primary.
 */
#pragma once

static __always_inline bool is_order(const struct packet *p)
{
	return p->protocol == IPPROTO_ORDER && !p->fragment &&
	       p->l4_offset == p->ip_offset + (p->ipv6 ? sizeof(struct ip6_header) :
							 sizeof(struct ip4_header));
}

struct order_segment {
	struct tcp_header tcp;
	__be32 options[TCP_ORDER_OPTIONS / 4];
};

/* What `socket` would hear if its client said again what it has said last. */
static __always_inline void repeat_client(struct order_segment *segment,
					  const struct tcp_sock *socket)
{
	__u32 window = socket->snd_wnd >> BPF_CORE_READ_BITFIELD(socket, rx_opt.snd_wscale);

	segment->tcp.seq = bpf_htonl(socket->rcv_nxt);
	segment->tcp.ack = bpf_htonl(socket->snd_una);
	segment->tcp.offset = sizeof(*segment) / 4 << 4;
	segment->tcp.flags = TCP_ACK;
	segment->tcp.window = bpf_htons(window > 0xffff ? 0xffff : window);
	segment->tcp.checksum = 0;
	segment->tcp.urgent = 0;
	if (BPF_CORE_READ_BITFIELD(socket, rx_opt.tstamp_ok)) {
		segment->options[0] = bpf_htonl(0x0101080a);
		segment->options[1] = bpf_htonl(socket->rx_opt.ts_recent);
		segment->options[2] = bpf_htonl(socket->rx_opt.rcv_tsecr);
	} else {
		__builtin_memset(segment->options, 1, sizeof(segment->options));
	}
}

/* Makes a packet of the order's protocol one of TCP's. */
static __always_inline void call_tcp(struct __sk_buff *skb, const struct packet *p)
{
	__u32 at = p->ip_offset;
	__u8 before[2], after[2];

	if (p->ipv6) {
		after[0] = IPPROTO_TCP;
		bpf_skb_store_bytes(skb, at + offsetof(struct ip6_header, next_header), after, 1,
				    BPF_F_RECOMPUTE_CSUM);
		return;
	}
	/* The header's own checksum keeps the sum over it, whoever may have made that, as it is. */
	at += offsetof(struct ip4_header, ttl);
	if (bpf_skb_load_bytes(skb, at, before, 2))
		return;
	after[0] = before[0];
	after[1] = IPPROTO_TCP;
	bpf_l3_csum_replace(skb, p->ip_offset + offsetof(struct ip4_header, checksum),
			    *(__be16 *)before, *(__be16 *)after, 2);
	bpf_skb_store_bytes(skb, at, after, 2, 0);
}

/* On the flow's primary. */
static __always_inline int carry_out(struct __sk_buff *skb, struct packet *p,
				     const struct flow_key *key)
{
	struct order_segment segment;
	struct gate *gate = NULL;
	struct tcp_sock *socket;
	struct bpf_sock *sk;
	__u32 edge, order;
	struct flow *flow;
	bool opened = false, moved = false;
	__s64 sum;

	if (!read_header(skb, p->l4_offset, &segment, sizeof(segment)))
		return drop(COUNT_ORDERS_STRAY);
	edge = bpf_ntohl(segment.tcp.seq);
	order = bpf_ntohl(segment.tcp.ack);
	sk = local_socket(skb, p);
	if (!sk)
		return drop(COUNT_ORDERS_STRAY);
	socket = bpf_skc_to_tcp_sock(sk);
	if (socket)
		gate = bpf_sk_storage_get(&gates, socket, NULL, 0);
	if (!gate) {
		bpf_sk_release(sk);
		return drop(COUNT_ORDERS_STRAY);
	}
	if (order == ORDER_AHEAD && seq_after(edge, gate->ahead)) {
		gate->ahead = edge;
		gate->preceded = 1;
		moved = true;
	}
	/* Not so far behind that it would seem to lie in front. */
	if (seq_after(socket->snd_una, gate->ahead))
		gate->ahead = socket->snd_una;
	/* What has been taken back meanwhile was not meant; a FIN lies behind the last byte. */
	if (seq_after(edge, gate->captured + 1))
		edge = gate->captured;
	if (order == ORDER_RELEASE && seq_after(edge, gate->released)) {
		gate->released = edge;
		moved = true;
	}
	/* Also of one that opened by itself: TCP may still wait, and the map makes FIONREAD lie. */
	if (order == ORDER_OPEN && !gate->opened)
		moved = opened = gate->open = gate->opened = 1;
	repeat_client(&segment, socket);
	bpf_sk_release(sk);
	/* Said before. TCP must not hear of it again and again: each acknowledgement puts its probe of
	 * a closed window off. */
	if (!moved)
		return drop(COUNT_ORDERS_STALE);
	if (opened) {
		flow = bpf_map_lookup_elem(&flows, key);
		if (flow && flow->child == CHILD_HELD)
			flow->child = CHILD_BORN;
		/* From here on its writes take the ordinary way. */
		if (!flow || !flow->swallow)
			bpf_map_delete_elem(&watched, key);
	}

	p->l4_length = sizeof(segment);
	sum = pseudo_sum(p, p->l4_length);
	if (sum >= 0)
		sum = bpf_csum_diff(NULL, 0, (__be32 *)&segment, sizeof(segment), sum);
	segment.tcp.checksum = ~fold(sum);
	bpf_skb_store_bytes(skb, p->l4_offset, &segment, sizeof(segment), BPF_F_RECOMPUTE_CSUM);
	call_tcp(skb, p);
	count(COUNT_ORDERS);
	return TC_ACT_OK;
}

/* Whose order is it? False: the packet is too short to say. */
static __always_inline bool key_of_order(struct __sk_buff *skb, struct packet *p,
					 struct flow_key *key)
{
	struct tcp_header tcp;

	if (!read_header(skb, p->l4_offset, &tcp, sizeof(tcp)))
		return false;
	p->source_port = tcp.source;
	p->destination_port = tcp.destination;
	key_inbound(p, key);
	return true;
}
