/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The daemon's orders. One write to the order device moves the released edge and then goes on to
 * the socket as an acknowledgement that says nothing new: what makes TCP try again at once. All but
 * the addresses is filled in from the socket itself, so there is no position to be followed and no
 * order can be out of date.
 */
#pragma once

#define OPTIONS 12

static __always_inline struct bpf_sock *ordered(struct __sk_buff *skb, __u32 at,
						const struct tcp_header *tcp)
{
	struct bpf_sock_tuple tuple = {};

	if (at == IP4_HEADER) {
		if (bpf_skb_load_bytes(skb, 12, &tuple.ipv4.saddr, 8))
			return NULL;
		tuple.ipv4.sport = tcp->source;
		tuple.ipv4.dport = tcp->destination;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (bpf_skb_load_bytes(skb, 8, &tuple.ipv6.saddr, 32))
		return NULL;
	tuple.ipv6.sport = tcp->source;
	tuple.ipv6.dport = tcp->destination;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

SEC("tc")
int order_in(struct __sk_buff *skb)
{
	__u32 at = skb->protocol == bpf_htons(ETH_P_IP) ? IP4_HEADER : IP6_HEADER;
	struct gate *gate = NULL;
	struct tcp_header tcp;
	struct tcp_sock *socket;
	struct bpf_sock *sk;
	__u32 window, edge, order;
	bool timestamps;
	struct {
		__be32 head;
		__be32 tsval;
		__be32 tsecr;
	} ts;

	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return TC_ACT_SHOT;
	edge = bpf_ntohl(tcp.seq);
	order = bpf_ntohl(tcp.ack);
	sk = ordered(skb, at, &tcp);
	if (!sk)
		goto stray;
	socket = bpf_skc_to_tcp_sock(sk);
	if (socket)
		gate = bpf_sk_storage_get(&gates, socket, NULL, 0);
	if (!gate) {
		bpf_sk_release(sk);
		goto stray;
	}
	if (order == ORDER_RELEASE && seq_after(edge, gate->released))
		gate->released = edge;
	if (order == ORDER_OPEN)
		gate->open = 1;

	window = socket->snd_wnd >> BPF_CORE_READ_BITFIELD(socket, rx_opt.snd_wscale);
	tcp.seq = bpf_htonl(socket->rcv_nxt);
	tcp.ack = bpf_htonl(socket->snd_una);
	tcp.window = bpf_htons(window > 0xffff ? 0xffff : window);
	tcp.flags = TCP_ACK;
	timestamps = BPF_CORE_READ_BITFIELD(socket, rx_opt.tstamp_ok);
	ts.head = bpf_htonl(0x0101080a);
	ts.tsval = bpf_htonl(socket->rx_opt.ts_recent);
	ts.tsecr = bpf_htonl(socket->rx_opt.rcv_tsecr);
	bpf_sk_release(sk);

	/* The device leaves the checksum to be done, so nobody will look at it. */
	bpf_skb_store_bytes(skb, at, &tcp, sizeof(tcp), 0);
	if (timestamps)
		bpf_skb_store_bytes(skb, at + 20, &ts, sizeof(ts), 0);
	count(COUNT_ORDERS);
	return TC_ACT_OK;
stray:
	count(COUNT_ORDERS_STRAY);
	return TC_ACT_SHOT;
}
