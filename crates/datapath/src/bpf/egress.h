/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Frames that leave. Everything with a service's source address passes here, whichever process or
 * timer caused it, so this is where the fence stands: a node whose daemon hangs or is gone stops
 * emitting when its lease runs out (invariant 3).
 *
 * Refused segments are taken (TC_ACT_STOLEN), not dropped: a drop would tell the local TCP that
 * its queue is full and shrink its congestion window.
 */
#pragma once

static __always_inline int take(enum counter why)
{
	count(why);
	return TC_ACT_STOLEN;
}

/* What was logged after the daemon looked at the log and before the adoption began is replayed as
 * well, and nobody has added it. */
static __always_inline void include_latest(struct flow *flow)
{
	if (!seq_after(flow->rcv_run, flow->replay_end) &&
	    seq_after(flow->rcv_max, flow->replay_end))
		flow->replay_end = flow->rcv_max;
}

/* A child that is being adopted speaks only once it has read the whole log: its acknowledgement
 * never steps back behind the dead primary's. */
static __always_inline int child_out(const struct packet *p, const struct flow_key *key,
				     struct flow *flow)
{
	__u32 edge = p->ack + ((__u32)p->window << flow->rcv_wscale);

	if (p->flags & TCP_RST) {
		/* The server refused the replayed connection. Before there is a child it is the stack,
		 * which had no socket for a segment that has passed just before. */
		if (flow->child)
			log_event(key, RECORD_DIVERGED, p->seq, 0, flow->service, true);
		return take(COUNT_CHILD_SILENCED);
	}
	include_latest(flow);
	if ((__s32)(p->ack - flow->replay_end) >= 0) {
		flow->state = FLOW_OPEN;
		/* Not urgent: the flow runs, and the daemon has only its books to close. */
		log_event(key, RECORD_CHILD, p->ack, edge, flow->service, false);
		return TC_ACT_OK;
	}
	if (p->ack != flow->child_ack || edge != flow->child_edge) {
		flow->child_ack = p->ack;
		flow->child_edge = edge;
		log_event(key, RECORD_CHILD, p->ack, edge, flow->service, true);
	}
	return take(COUNT_CHILD_SILENCED);
}

/* Is this provably not the stream the client knows (invariant 6)? The server ends it before the
 * byte the client has, or elsewhere than the dead primary's FIN did. */
static __always_inline bool diverges(const struct packet *p, const struct flow *flow, __u32 end)
{
	if (p->flags & TCP_RST)
		return false;
	if (p->flags & TCP_FIN && flow->swallow)
		return true;
	if (!(flow->flags & FLOW_SERVER_FIN))
		return false;
	return seq_after(end, flow->server_fin + 1) ||
	       (p->flags & TCP_FIN && end != flow->server_fin + 1);
}

static __always_inline int from_service(struct __sk_buff *skb, const struct packet *p)
{
	struct flow_key key;
	struct share *share;
	struct role_entry role;
	struct flow *flow;
	bool delivering;
	__u32 end;

	key_outbound(p, &key);
	share = share_of(&key);
	role = role_in(share);
	if (role.role != ROLE_PRIMARY)
		return take(COUNT_DROP_NOT_PRIMARY);
	if (share->crash_fenced)
		return take(COUNT_DROP_CRASHED);
	if (now_ns() >= share->lease_until_ns)
		return take(COUNT_DROP_FENCED);
	/* gate_out has been asked before, unless it went with its daemon. */
	if (holding) {
		switch (judge(skb, p)) {
		case LEAVES:
			break;
		case LEAVES_BY_BACKUP:
			return send_to_peer(skb, COUNT_REPLY_OUT);
		case STAYS:
			return take(COUNT_GATE_FENCED);
		}
	}
	flow = ctl.knows_flows ? bpf_map_lookup_elem(&flows, &key) : NULL;
	if (flow) {
		if (flow->state == FLOW_TRACKED)
			return take(COUNT_CHILD_SILENCED);
		if (flow->state == FLOW_ADOPTING && child_out(p, &key, flow) != TC_ACT_OK)
			return TC_ACT_STOLEN;
		/* The daemon's child may be closed already: what the stack says then is not meant for
		 * the client. */
		delivering = is_delivering(flow);
		if (delivering && p->flags & TCP_RST)
			return take(COUNT_CHILD_SILENCED);
		if (delivering || flow->state == FLOW_OPEN) {
			end = p->seq + p->payload_length + (p->flags & TCP_FIN ? 1 : 0);
			if (diverges(p, flow, end)) {
				if (!(flow->flags & FLOW_DIVERGED))
					log_event(&key, RECORD_DIVERGED, p->seq, 0,
						  flow->service, true);
				flow->flags |= FLOW_DIVERGED;
				return take(COUNT_CHILD_SILENCED);
			}
			if (seq_after(end, flow->snd_max))
				flow->snd_max = end;
			if (p->flags & TCP_FIN) {
				flow->seen_s = now_s();
				flow->flags |= FLOW_SERVER_FIN;
				flow->server_fin = p->seq + p->payload_length;
			}
			if (p->flags & TCP_RST) {
				log_event(&key, RECORD_CLOSED, 0, 0, flow->service, false);
				bpf_map_delete_elem(&flows, &key);
			}
		}
	}
	if (role.duplex && p->flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return send_to_peer(skb, COUNT_BOUNCED_OUT);
	return TC_ACT_OK;
}

/* The kernel likes to ask for a neighbour in the name of the address it is about to use. Doing so
 * with a service address would claim it on the link, so the node's own address takes its place. */
static __always_inline int arp_out(struct __sk_buff *skb)
{
	struct arp_header arp;
	__u8 sender[16];
	__be32 ip, own = own_address4;

	if (ctl.holding)
		return TC_ACT_OK;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &arp, sizeof(arp)))
		return TC_ACT_OK;
	__builtin_memcpy(&ip, arp.sender, 4);
	map_ip4(sender, ip);
	if (!is_service_address(sender))
		return TC_ACT_OK;
	if (!own)
		return take(COUNT_ARP_SILENCED);
	bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct arp_header, sender), &own, 4, 0);
	count(COUNT_ARP_REWRITTEN);
	return TC_ACT_OK;
}

SEC("tc")
int node_out(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed parsed;

	if (skb->mark == MARK_PASSED_ON)
		return TC_ACT_OK;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return arp_out(skb);
	parsed = parse_ip(skb, ETH_HLEN, &p);
	if (parsed != PARSED_TCP || !parse_tcp(skb, &p))
		return TC_ACT_OK;
	if (!service_of(p.source, p.source_port))
		return TC_ACT_OK;
	return from_service(skb, &p);
}
