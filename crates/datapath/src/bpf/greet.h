/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The dead primary's SYN-ACK once more. Its client may have it, or have it yet to come (it can wait a
 * second for a neighbour's address): were the SYN, sent again, answered by this node's TCP, the client
 * would hear two initial sequence numbers, and its connection could be neither the one nor the other.
 */
#pragma once

/* RFC 9293 §3.2, RFC 7323 appendix A, RFC 2018: every option that a SYN-ACK may carry, or NOPs. */
struct syn_ack {
	struct tcp_header tcp;
	__u8 mss[4];
	__u8 sack[2];
	__u8 timestamps[2];
	__be32 tsval;
	__be32 tsecr;
	__u8 wscale[4];
};

#define TCP_NOP 1
#define NOPS 0x01010101
#define DEFAULT_TTL 64

static __always_inline bool is_syn(const struct packet *p)
{
	return (p->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* As the primary wrote it, but for the clock, which has gone on. */
static __always_inline void write_syn_ack(struct syn_ack *s, const struct packet *p,
					  const struct embryo *e, __u32 tsecr)
{
	__u8 agreed = e->server_options;

	s->tcp.source = p->destination_port;
	s->tcp.destination = p->source_port;
	s->tcp.seq = bpf_htonl(e->iss);
	s->tcp.ack = bpf_htonl(e->irs + 1);
	s->tcp.offset = sizeof(*s) / 4 << 4;
	s->tcp.flags = TCP_SYN | TCP_ACK | (agreed & OPT_ECN ? TCP_ECE : 0);
	s->tcp.window = bpf_htons(e->server_window);
	s->tcp.checksum = 0;
	s->tcp.urgent = 0;
	s->mss[0] = 2;
	s->mss[1] = 4;
	s->mss[2] = e->server_mss >> 8;
	s->mss[3] = e->server_mss;
	s->sack[0] = agreed & OPT_SACK ? 4 : TCP_NOP;
	s->sack[1] = agreed & OPT_SACK ? 2 : TCP_NOP;
	s->timestamps[0] = agreed & OPT_TSTAMP ? 8 : TCP_NOP;
	s->timestamps[1] = agreed & OPT_TSTAMP ? 10 : TCP_NOP;
	s->tsval = agreed & OPT_TSTAMP ?
			   bpf_htonl(e->server_tsval + (now_ms() - e->server_ts_ms)) :
			   NOPS;
	s->tsecr = agreed & OPT_TSTAMP ? bpf_htonl(tsecr) : NOPS;
	s->wscale[0] = TCP_NOP;
	s->wscale[1] = agreed & OPT_WSCALE ? 3 : TCP_NOP;
	s->wscale[2] = agreed & OPT_WSCALE ? 3 : TCP_NOP;
	s->wscale[3] = agreed & OPT_WSCALE ? e->server_wscale : TCP_NOP;
}

/* A program's stack has room for one of these at a time: so none of them is inlined. */

static __noinline __u32 tsval_of(struct __sk_buff *skb, const struct packet *p)
{
	struct tcp_options o;

	parse_options(skb, p, &o);
	return o.tsval;
}

/* Back to where the frame came from. */
static __noinline int turn_link_header(struct __sk_buff *skb)
{
	__u8 macs[2 * ETH_ALEN], turned[2 * ETH_ALEN];

	if (!read_header(skb, 0, macs, sizeof(macs)))
		return 0;
	__builtin_memcpy(turned, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(turned + ETH_ALEN, macs, ETH_ALEN);
	return !bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0);
}

static __noinline int write_ip4(struct __sk_buff *skb, const struct packet *p)
{
	struct ip4_header ip = {
		.version_ihl = 0x45,
		.length = bpf_htons(sizeof(ip) + sizeof(struct syn_ack)),
		.fragment = bpf_htons(0x4000), /* do not fragment */
		.ttl = DEFAULT_TTL,
		.protocol = IPPROTO_TCP,
	};
	__s64 sum;

	__builtin_memcpy(&ip.source, p->destination + 12, 4);
	__builtin_memcpy(&ip.destination, p->source + 12, 4);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0);
	if (sum < 0)
		return 0;
	ip.checksum = ~fold(sum);
	return !bpf_skb_store_bytes(skb, p->ip_offset, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

static __noinline int write_ip6(struct __sk_buff *skb, const struct packet *p)
{
	struct ip6_header ip = {
		.version_class_label = bpf_htonl(6u << 28),
		.payload_length = bpf_htons(sizeof(struct syn_ack)),
		.next_header = IPPROTO_TCP,
		.hop_limit = DEFAULT_TTL,
	};

	__builtin_memcpy(ip.source, p->destination, 16);
	__builtin_memcpy(ip.destination, p->source, 16);
	return !bpf_skb_store_bytes(skb, p->ip_offset, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

static __noinline int write_tcp(struct __sk_buff *skb, const struct packet *p,
				const struct embryo *e, __u32 tsecr)
{
	bool partial = summed_by(skb) == CHECKSUM_PARTIAL;
	struct syn_ack answer;
	__s64 sum = pseudo_sum(p, sizeof(answer));

	write_syn_ack(&answer, p, e, tsecr);
	/* Where the sum is still to be made, only its beginning stands in the header. */
	if (sum >= 0 && !partial)
		sum = bpf_csum_diff(NULL, 0, (__be32 *)&answer, sizeof(answer), sum);
	if (sum < 0)
		return 0;
	answer.tcp.checksum = partial ? fold(sum) : ~fold(sum);
	return !bpf_skb_store_bytes(skb, p->l4_offset, &answer, sizeof(answer),
				    BPF_F_RECOMPUTE_CSUM);
}

/* Turns the client's SYN into the SYN-ACK that it was answered with. */
static __always_inline bool turn_syn(struct __sk_buff *skb, const struct packet *p,
				     const struct embryo *e)
{
	__u32 tsecr = tsval_of(skb, p);

	return !bpf_skb_change_tail(skb, p->l4_offset + sizeof(struct syn_ack), 0) &&
	       write_tcp(skb, p, e, tsecr) &&
	       (p->ipv6 ? write_ip6(skb, p) : write_ip4(skb, p)) && turn_link_header(skb);
}

/* Primary: a SYN of no flow. Where it cannot be answered as before the handshake is forgotten, since
 * this node's TCP is going to answer in words of its own. */
static __always_inline int greet(struct __sk_buff *skb, const struct packet *p,
				 const struct flow_key *key)
{
	struct embryo *e = bpf_map_lookup_elem(&embryos, key);

	if (!e || e->irs != p->seq || !e->answered)
		return TC_ACT_OK;
	/* What stands between the headers was meant for the way here. */
	if (e->fast_open ||
	    p->l4_offset != p->ip_offset + (p->ipv6 ? sizeof(struct ip6_header) :
						      sizeof(struct ip4_header))) {
		bpf_map_delete_elem(&embryos, key);
		return TC_ACT_OK;
	}
	if (!checksum_good(skb, p))
		return drop(COUNT_DROP_CHECKSUM);
	if (!turn_syn(skb, p, e))
		return drop(COUNT_REDIRECT_FAILED);
	count(COUNT_SYN_ANSWERED);
	skb->mark = MARK_PASSED_ON;
	return bpf_redirect(skb->ifindex, 0);
}
