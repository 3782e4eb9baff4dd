/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Adoption: the daemon writes a forged segment into its TUN device; for a flow in FLOW_ADOPTING the
 * kernel makes an ESTABLISHED child of the listener from it, with the client's real sequence
 * numbers and options. Receive and send side are independent: the child is born at the start of
 * the instream and at the client's position in the outstream. For a flow in FLOW_DELIVERING it is a
 * child of the daemon's own listener instead: whose child it is need not be told from the addresses
 * and ports, which are the flow's. The device also takes the daemon's orders to gates.
 */
#pragma once

/* The forged segment says everything about clocks: the child must be able to believe the very
 * segment it is born from, whatever the flow's entry has learnt since (RFC 7323 §5). */
static __always_inline void birth_attributes(struct __sk_buff *skb, const struct packet *p,
					     const struct flow *flow,
					     struct bpf_tcp_req_attrs *attrs)
{
	attrs->mss = flow->mss;
	attrs->snd_wscale = flow->snd_wscale;
	attrs->rcv_wscale = flow->rcv_wscale;
	attrs->wscale_ok = !!(flow->options & OPT_WSCALE);
	attrs->sack_ok = !!(flow->options & OPT_SACK);
	attrs->ecn_ok = !!(flow->options & OPT_ECN);
	if (flow->options & OPT_TSTAMP)
		attrs->tstamp_ok =
			parse_timestamps(skb, p, &attrs->rcv_tsval, &attrs->rcv_tsecr);
}

/* An order of this node's daemon: for a server of this node's, or of the peer's. */
static __always_inline int order_from_here(struct __sk_buff *skb, struct packet *p)
{
	__be16 protocol = skb->protocol;
	struct flow_key key;

	if (!key_of_order(skb, p, &key))
		return drop(COUNT_ORDERS_STRAY);
	switch (role_of(&key).role) {
	case ROLE_PRIMARY:
		return carry_out(skb, p, &key);
	case ROLE_BACKUP:
		/* The device's packets begin with their IP header. */
		if (bpf_skb_change_head(skb, ETH_HLEN, 0) ||
		    bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol), 0))
			return drop(COUNT_REDIRECT_FAILED);
		return send_to_peer(skb, COUNT_ORDERS_SENT);
	default:
		return drop(COUNT_ORDERS_STRAY);
	}
}

/* The socket that is to have the flow's child, to be released: the server's listener, or the
 * daemon's in its place. NULL: no server listens, or the flow has a socket. */
static __always_inline struct bpf_sock *parent_of(struct __sk_buff *skb, const struct packet *p,
						  const struct flow_key *key, const struct flow *flow)
{
	struct bpf_sock *found = local_socket(skb, p);
	__u32 share = share_index(key);

	if (!found)
		return NULL;
	if (found->state != BPF_TCP_LISTEN) {
		bpf_sk_release(found);
		return NULL;
	}
	if (is_delivering(flow)) {
		bpf_sk_release(found);
		return bpf_map_lookup_elem(&deliverer, &share);
	}
	return found;
}

SEC("tc")
int adopt_in(struct __sk_buff *skb)
{
	struct bpf_tcp_req_attrs attrs = {};
	struct bpf_sock *found;
	struct packet p = {};
	struct flow_key key;
	struct flow *flow;
	enum parsed parsed = parse_ip(skb, 0, &p);
	struct sock *listener;
	int error;

	if (holding && parsed == PARSED_OTHER && is_order(&p))
		return order_from_here(skb, &p);
	if (parsed != PARSED_TCP || !parse_tcp(skb, &p))
		return drop(COUNT_ADOPT_STRAY);
	key_inbound(&p, &key);
	flow = bpf_map_lookup_elem(&flows, &key);
	/* A connection that the dead primary has not answered begins here like any other. */
	if (!flow && (p.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return TC_ACT_OK;
	if (!flow || (flow->state != FLOW_ADOPTING && flow->state != FLOW_OPEN &&
		      !is_delivering(flow)))
		return drop(COUNT_ADOPT_STRAY);
	if (flow->child)
		return TC_ACT_OK;
	if (p.seq != flow->birth_seq || p.ack != flow->birth_ack)
		return drop(COUNT_ADOPT_STRAY);

	found = parent_of(skb, &p, &key, flow);
	if (!found)
		return drop(COUNT_ADOPT_OCCUPIED);
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
