/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Adoption: the daemon writes a forged segment into its TUN device; for a flow in FLOW_ADOPTING the
 * kernel makes an ESTABLISHED child of the listener from it, with the client's real sequence
 * numbers and options. Receive and send side are independent: the child is born at the start of
 * the instream and at the client's position in the outstream.
 */
#pragma once

static __always_inline void birth_attributes(struct __sk_buff *skb, const struct packet *p,
					     const struct flow *flow,
					     struct bpf_tcp_req_attrs *attrs)
{
	__u32 tsval = flow->tsval, tsecr;

	attrs->mss = flow->mss;
	attrs->snd_wscale = flow->snd_wscale;
	attrs->rcv_wscale = flow->rcv_wscale;
	attrs->wscale_ok = !!(flow->options & OPT_WSCALE);
	attrs->sack_ok = !!(flow->options & OPT_SACK);
	attrs->ecn_ok = !!(flow->options & OPT_ECN);
	attrs->tstamp_ok = !!(flow->options & OPT_TSTAMP);
	/* The forged segment's own value, not the flow's latest: the client may have spoken since,
	 * and a child born with a later TSval than the segment that bears it takes that segment for
	 * an old duplicate (RFC 7323 §5.3) and never leaves SYN-RECEIVED. */
	if (attrs->tstamp_ok)
		parse_timestamps(skb, p, &tsval, &tsecr);
	attrs->rcv_tsval = tsval;
	/* The child's clock starts at rcv_tsecr. It must not run behind the dead primary's, whose
	 * latest value the backup has not seen: what the client echoed tells it but for one way
	 * through the network, which the slack covers (RFC 7323 §5.4 asks for monotony only). */
	attrs->rcv_tsecr = now_ms() + flow->ts_delta + tsval_slack_ms;
}

SEC("tc")
int adopt_in(struct __sk_buff *skb)
{
	struct bpf_tcp_req_attrs attrs = {};
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	struct packet p = {};
	struct flow_key key;
	struct flow *flow;
	struct sock *listener;
	__u32 size;
	int error;

	if (parse_ip(skb, 0, &p) != PARSED_TCP || !parse_tcp(skb, &p))
		return drop(COUNT_ADOPT_STRAY);
	key_inbound(&p, &key);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || (flow->state != FLOW_ADOPTING && flow->state != FLOW_OPEN))
		return drop(COUNT_ADOPT_STRAY);
	if (flow->flags & FLOW_BORN)
		return TC_ACT_OK;
	if (p.seq != flow->birth_seq || p.ack != flow->birth_ack)
		return drop(COUNT_ADOPT_STRAY);

	if (p.ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, p.source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, p.destination, 16);
		tuple.ipv6.sport = p.source_port;
		tuple.ipv6.dport = p.destination_port;
		size = sizeof(tuple.ipv6);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, p.source + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, p.destination + 12, 4);
		tuple.ipv4.sport = p.source_port;
		tuple.ipv4.dport = p.destination_port;
		size = sizeof(tuple.ipv4);
	}
	found = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return drop(COUNT_ADOPT_OCCUPIED);
	if (found->state != BPF_TCP_LISTEN) {
		bpf_sk_release(found);
		return drop(COUNT_ADOPT_OCCUPIED);
	}
	listener = (struct sock *)bpf_skc_to_tcp_sock(found);
	if (!listener) {
		bpf_sk_release(found);
		return drop(COUNT_ADOPT_OCCUPIED);
	}
	birth_attributes(skb, &p, flow, &attrs);
	error = bpf_sk_assign_tcp_reqsk(skb, listener, &attrs, sizeof(attrs));
	bpf_sk_release(found);
	if (error)
		return drop(COUNT_ADOPT_REFUSED);
	return TC_ACT_OK;
}
