/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Frames that arrive. On a backup, a client's segment is appended to the log and then sent on to
 * the primary, never the other way round: the primary cannot know a byte that the backup lacks
 * (C1, invariant 1). On a promoted node the same segment is only logged until its flow has been
 * adopted, so that no RST can be provoked.
 */
#pragma once

static __always_inline bool from_peer(struct __sk_buff *skb, int link)
{
	const __u8 *peer = ctl.peer_mac[link];
	__u8 mac[6], different = 0;
	int i;

	if (!read_header(skb, ETH_ALEN, mac, sizeof(mac)))
		return false;
	for (i = 0; i < 6; i++)
		different |= mac[i] ^ peer[i];
	return !different;
}

/* To the peer, over the link the two have agreed on. */
static __always_inline int send_to_peer(struct __sk_buff *skb, enum counter counter)
{
	__u8 macs[12];

	__builtin_memcpy(macs, ctl.relay.dst, 6);
	__builtin_memcpy(macs + 6, ctl.relay.src, 6);
	if (!ctl.relay.ifindex || bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0)) {
		count(COUNT_REDIRECT_FAILED);
		return TC_ACT_SHOT;
	}
	count(counter);
	skb->mark = MARK_PASSED_ON;
	return bpf_redirect(ctl.relay.ifindex, 0);
}

/* Who serves is about to change, and answers first what it has been asked. What a client asks then waits
 * for the next primary: this one would not have the time to answer it, and it would be executed twice. */
static __always_inline bool park(struct flow *flow, const struct packet *p,
				 const struct flow_key *key, const struct share *share, __u64 now)
{
	__u64 until = share->parked_until_ns;
	__u32 end = p->seq + p->payload_length + (p->flags & TCP_FIN ? 1 : 0);
	bool begun = flow->parked == (__u32)until;
	struct service *service;

	if (now >= until || flow->state != FLOW_TRACKED || end == p->seq)
		return false;
	/* What has been relayed before may have been lost. */
	if (!seq_after(end, begun ? flow->parked_from : flow->rcv_max))
		return false;
	service = service_of(key->server, key->server_port);
	if (!service || !service->held)
		return false;
	if (!begun) {
		flow->parked_from = flow->rcv_max;
		flow->parked = until;
	}
	count(COUNT_PARKED);
	return true;
}

/* Backup: log what must survive, then relay. */
static __always_inline int tap(struct __sk_buff *skb, const struct packet *p,
			       const struct flow_key *key, __u32 service, __u32 epoch,
			       const struct share *share, bool relayed)
{
	__u64 now = now_ns();
	bool journal = now < share->journal_until_ns;
	bool refused, parked;
	struct flow *flow;

	/* The peer sends a client's segment here to have it logged. Unlogged it does not go back: if the
	 * peer does not serve either, a frame would go to and fro between the two for ever. */
	if (relayed && !journal)
		return drop(COUNT_DROP_RETURNED);

	if (!checksum_good(skb, p))
		return drop(COUNT_DROP_CHECKSUM);
	flow = bpf_map_lookup_elem(&flows, key);
	if (p->flags & TCP_SYN) {
		if (!(p->flags & TCP_ACK)) {
			/* Whatever was unprotected, or over, with these addresses: this is new. */
			bpf_map_delete_elem(&strays, key);
			if (flow)
				flow->flags |= FLOW_RENEWED;
			if (journal)
				embryo_syn(skb, p, key);
		}
		return send_to_peer(skb, COUNT_RELAYED);
	}
	/* A connection that reuses the addresses of an old one arrives with a handshake of its
	 * own: it takes the old one's place. */
	if (journal && (!flow || flow->flags & FLOW_RENEWED)) {
		struct flow *renewed = flow_from_embryo(p, key, service, epoch, &refused);

		if (refused)
			return TC_ACT_SHOT;
		if (renewed)
			flow = renewed;
	}
	if (!flow)
		note_stray(p, key);
	if (!flow || !journal) {
		/* The flow's position is followed, or else its honest segments would look wild when
		 * the daemon is back. But what the log has missed it will never have. */
		if (flow && plausible(flow, p)) {
			if (!(p->flags & TCP_RST))
				follow_client(skb, p, flow, now);
			if (flow->state == FLOW_TRACKED &&
			    (p->payload_length || p->flags & (TCP_FIN | TCP_RST)))
				flow->state = FLOW_SIMPLEX;
		}
		count(COUNT_UNTRACKED);
		return send_to_peer(skb, COUNT_RELAYED);
	}
	if (!plausible(flow, p))
		return drop(COUNT_DROP_WILD);
	if (flow->state == FLOW_TRACKED) {
		if (p->payload_length || p->flags & TCP_FIN) {
			if (!log_segment(skb, p, key, flow, false))
				return drop(COUNT_DROP_RING_FULL);
		} else if (p->flags & TCP_RST) {
			if (!log_event(key, RECORD_RESET, p->seq, 0, flow->service, false))
				return drop(COUNT_DROP_RING_FULL);
		}
	} else {
		count(COUNT_UNTRACKED);
	}
	parked = park(flow, p, key, share, now);
	if (!(p->flags & TCP_RST))
		follow_client(skb, p, flow, now);
	if (p->flags & TCP_FIN) {
		flow->flags |= FLOW_CLIENT_FIN;
		flow->client_fin = p->seq + p->payload_length;
	}
	if (is_over(flow)) {
		/* Without this acknowledgement the server sends its FIN again, and so comes the next
		 * occasion. */
		if (!log_event(key, RECORD_CLOSED, 0, 0, flow->service, false))
			return drop(COUNT_DROP_RING_FULL);
		leave_stray(key);
		bpf_map_delete_elem(&flows, key);
	}
	return parked ? TC_ACT_SHOT : send_to_peer(skb, COUNT_RELAYED);
}

/* Up to where the adopted child has sent, in its own view. What has been seen leaving is no measure:
 * a full queue behind the egress hook refuses segments, and the child takes them for unsent. */
static __always_inline __u32 sent_by_child(struct __sk_buff *skb, const struct packet *p,
					   struct flow *flow)
{
	struct bpf_sock *child = local_socket(skb, p);
	__u32 sent = flow->snd_max;
	struct tcp_sock *tcp;

	if (!child)
		return sent;
	if (child->state != BPF_TCP_LISTEN) {
		tcp = bpf_skc_to_tcp_sock(child);
		if (tcp)
			flow->child_nxt = sent = tcp->snd_nxt;
	}
	bpf_sk_release(child);
	return sent;
}

/* Not inlined: what it needs of the stack is wanted elsewhere. */
static __noinline int tell_less(struct __sk_buff *skb, const struct packet *p, struct flow *flow)
{
	__be32 seen = bpf_htonl(p->ack), told;
	__u32 sent = sent_by_child(skb, p, flow);

	if (!seq_after(p->ack, sent))
		return 0;
	told = bpf_htonl(sent);
	if (bpf_l4_csum_replace(skb, p->l4_offset + offsetof(struct tcp_header, checksum), seen, told,
				4))
		return 0;
	bpf_skb_store_bytes(skb, p->l4_offset + offsetof(struct tcp_header, ack), &told, 4, 0);
	count(COUNT_ACK_CLAMPED);
	return 0;
}

/* An adopted child has yet to send what the client already acknowledges (the dead primary's last
 * segments were still on their way). Its TCP would discard such an acknowledgement and both sides
 * would wait for ever, so it is told the part it can understand. What the child has sent stays
 * sent, so the socket is looked up only for an acknowledgement beyond the last answer. */
static __always_inline void clamp_ack(struct __sk_buff *skb, const struct packet *p,
				      struct flow *flow)
{
	if (p->flags & TCP_ACK && seq_after(p->ack, flow->child_nxt))
		tell_less(skb, p, flow);
}

/* Has the child nothing left to repeat of what the client has? Until then the flow must be known:
 * forgetting it too late costs an entry, forgetting it too early would put those bytes into the
 * stream a second time. */
static __always_inline bool has_caught_up(const struct flow *flow)
{
	return !flow->swallow && !seq_after(flow->una, flow->snd_max);
}

/* Does the client close before the child has repeated what the client has? That was written before the
 * client closed, and must be written again before the child hears of it: a server may give up a reply
 * whose client has gone, and its stream would end too early. The client sends its FIN again. The
 * server's own FIN need not have been repeated. */
static __always_inline bool closes_too_early(const struct flow *flow, const struct packet *p)
{
	__u32 has = p->ack;

	if (flow->flags & FLOW_SERVER_FIN && has == flow->server_fin + 1)
		has--;
	return p->flags & TCP_FIN && (flow->swallow || seq_after(has, flow->snd_max));
}

/* Does this reset end an adopted flow? TCP believes a reset only at the very next byte (RFC 5961
 * §3.2), which is not known here when segments are missing. */
static __always_inline bool resets_child(const struct flow *flow, const struct packet *p)
{
	return p->flags & TCP_RST && (p->seq == flow->rcv_max || has_caught_up(flow));
}

/* What is logged during an adoption is replayed as well, and the child speaks behind it: a window
 * that it offers before it has read that far may end in front of what the client has sent. */
static __always_inline void lengthen_replay(struct flow *flow, const struct packet *p)
{
	__u32 end = p->seq + p->payload_length + (p->flags & TCP_FIN ? 1 : 0);

	if (flow->state == FLOW_ADOPTING && !seq_after(p->seq, flow->replay_end) &&
	    seq_after(end, flow->replay_end))
		flow->replay_end = end;
}

/* Primary, the flow is being taken over: what the client says is logged. */
static __always_inline int log_client(struct __sk_buff *skb, const struct packet *p,
				      const struct flow_key *key, struct flow *flow)
{
	if (!checksum_good(skb, p))
		return drop(COUNT_DROP_CHECKSUM);
	if (p->flags & TCP_SYN)
		return drop(COUNT_HELD);
	if (p->payload_length || p->flags & TCP_FIN) {
		if (!log_segment(skb, p, key, flow, true))
			return drop(COUNT_DROP_RING_FULL);
		lengthen_replay(flow, p);
	} else if (p->flags & TCP_RST) {
		if (!log_event(key, RECORD_RESET, p->seq, 0, flow->service, true))
			return drop(COUNT_DROP_RING_FULL);
	}
	if (!(p->flags & TCP_RST))
		follow_client(skb, p, flow, now_ns());
	if (p->flags & TCP_FIN) {
		flow->flags |= FLOW_CLIENT_FIN;
		flow->client_fin = p->seq + p->payload_length;
	}
	return TC_ACT_OK;
}

/* Primary: to the local stack, unless the flow is being taken over. */
static __always_inline int serve(struct __sk_buff *skb, const struct packet *p,
				 const struct flow_key *key, __u32 service,
				 struct role_entry role, bool relayed)
{
	struct flow *flow;
	bool refused;
	int verdict;

	flow = ctl.knows_flows ? bpf_map_lookup_elem(&flows, key) : NULL;
	if (!flow && ctl.knows_flows && !(p->flags & TCP_SYN)) {
		flow = flow_from_embryo(p, key, service, role.epoch, &refused);
		if (refused)
			return TC_ACT_SHOT;
	}
	if (!flow) {
		if (role.duplex && !relayed)
			return send_to_peer(skb, COUNT_REDIRECTED);
		return ctl.knows_flows && is_syn(p) ? greet(skb, p, key) : TC_ACT_OK;
	}
	if (!plausible(flow, p) && !(p->flags & TCP_SYN))
		return drop(COUNT_DROP_WILD);
	if (flow->state == FLOW_TRACKED || flow->state == FLOW_ADOPTING || is_delivering(flow)) {
		verdict = log_client(skb, p, key, flow);
		if (verdict != TC_ACT_OK)
			return verdict;
		/* A child of the daemon's hears its client; a server's, only what is replayed. */
		if (!is_delivering(flow) || !flow->child)
			return drop(COUNT_HELD);
	} else {
		if (role.duplex && !relayed)
			return send_to_peer(skb, COUNT_REDIRECTED);
		if (flow->state != FLOW_OPEN || p->flags & TCP_SYN)
			return TC_ACT_OK;
		if (closes_too_early(flow, p))
			return drop(COUNT_HELD);
		if (!(p->flags & TCP_RST))
			follow_client(skb, p, flow, now_ns());
		if (p->flags & TCP_FIN)
			flow->flags |= FLOW_CLIENT_FIN;
	}
	clamp_ack(skb, p, flow);
	/* The dead primary's last segments may end the stream for the client before the child has come
	 * as far. Nor is it over while the daemon has something to deliver. */
	if (flow->state == FLOW_OPEN &&
	    ((is_over(flow) && has_caught_up(flow)) || resets_child(flow, p))) {
		log_event(key, RECORD_CLOSED, 0, 0, flow->service, false);
		bpf_map_delete_elem(&flows, key);
	}
	return TC_ACT_OK;
}

static __always_inline int to_service(struct __sk_buff *skb, struct packet *p,
				      struct service *service, bool relayed)
{
	struct flow_key key;
	struct share *share;
	struct role_entry role;

	key_inbound(p, &key);
	share = share_of(&key);
	role = role_in(share);
	switch (role.role) {
	case ROLE_BACKUP:
		return tap(skb, p, &key, service->id, role.epoch, share, relayed);
	case ROLE_PRIMARY:
		return serve(skb, p, &key, service->id, role, relayed);
	default:
		return drop(COUNT_DROP_NO_ROLE);
	}
}

/* A held segment of the primary's that is a whole reply. Logged here it is held by both nodes, so it may go
 * on. Behind what its client has acknowledged, and nowhere else: in front of it may be a reply that waits,
 * or none at all. */
static __always_inline int pass_reply_on(struct __sk_buff *skb, const struct packet *p,
					 const struct flow_key *key)
{
	struct flow *flow;

	if (now_ns() >= share_of(key)->journal_until_ns)
		return drop(COUNT_UNTRACKED);
	flow = bpf_map_lookup_elem(&flows, key);
	if (!flow || flow->state != FLOW_TRACKED || p->seq != flow->una)
		return drop(COUNT_REPLY_STALE);
	if (!log_reply(skb, p, key))
		return drop(COUNT_DROP_RING_FULL);
	count(COUNT_REPLY_IN);
	skb->mark = MARK_PASSED_ON;
	return bpf_redirect_neigh(service_ifindex, NULL, 0, 0);
}

/* A control segment of the primary's: note it, then pass it on to the client. */
static __always_inline int pass_on(struct __sk_buff *skb, const struct packet *p, bool relayed)
{
	struct flow_key key;
	struct flow *flow;

	if (!relayed)
		return drop(COUNT_DROP_STRANGER);
	if (!checksum_good(skb, p))
		return drop(COUNT_DROP_CHECKSUM);
	key_outbound(p, &key);
	if (role_of(&key).role != ROLE_BACKUP)
		return drop(COUNT_DROP_NO_ROLE);
	if (holding && p->payload_length && !(p->flags & (TCP_SYN | TCP_FIN | TCP_RST)))
		return pass_reply_on(skb, p, &key);
	if (p->flags & TCP_SYN) {
		embryo_syn_ack(skb, p, &key);
	} else {
		flow = bpf_map_lookup_elem(&flows, &key);
		if (!flow)
			end_stray(p, &key);
		if (flow && p->flags & TCP_RST) {
			/* Who has no connection any more answers the client's next segment alike. */
			if (!log_event(&key, RECORD_CLOSED, 0, 0, flow->service, false))
				return drop(COUNT_DROP_RING_FULL);
			leave_stray(&key);
			bpf_map_delete_elem(&flows, &key);
		} else if (flow && p->flags & TCP_FIN) {
			flow->seen_s = now_s();
			flow->flags |= FLOW_SERVER_FIN;
			flow->server_fin = p->seq + p->payload_length;
		}
	}
	count(COUNT_BOUNCED_IN);
	skb->mark = MARK_PASSED_ON;
	return bpf_redirect_neigh(service_ifindex, NULL, 0, 0);
}

/* An ICMP error that quotes one of our flows follows the flow (path MTU discovery must work). */
static __always_inline int icmp_error(struct __sk_buff *skb, struct packet *p, bool relayed)
{
	struct packet quoted = {};
	struct flow_key key;
	__u8 type;
	__be16 ports[2];

	if (bpf_skb_load_bytes(skb, p->l4_offset, &type, 1))
		return TC_ACT_OK;
	if (p->protocol == IPPROTO_ICMP ? type != 3 && type != 11 && type != 12 : type < 1 || type > 4)
		return TC_ACT_OK;
	/* The quoted header is the service's own segment, cut short: lengths prove nothing. */
	if (parse_ip(skb, p->l4_offset + 8, &quoted) == PARSED_OTHER ||
	    quoted.protocol != IPPROTO_TCP)
		return TC_ACT_OK;
	if (bpf_skb_load_bytes(skb, quoted.l4_offset, ports, sizeof(ports)))
		return TC_ACT_OK;
	quoted.source_port = ports[0];
	quoted.destination_port = ports[1];
	if (!service_of(quoted.source, quoted.source_port))
		return TC_ACT_OK;
	key_outbound(&quoted, &key);
	if (role_of(&key).role == ROLE_BACKUP && !relayed)
		return send_to_peer(skb, COUNT_ICMP_RELAYED);
	return TC_ACT_OK;
}

/* Requests for a service address are answered only by the node that holds it. */
static __always_inline int arp_in(struct __sk_buff *skb)
{
	struct arp_header arp;
	__u8 target[16];
	__be32 ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &arp, sizeof(arp)))
		return TC_ACT_OK;
	if (arp.operation != bpf_htons(1))
		return TC_ACT_OK;
	__builtin_memcpy(&ip, arp.target, 4);
	map_ip4(target, ip);
	if (is_service_address(target) && !ctl.holding)
		return drop(COUNT_ARP_SILENCED);
	return TC_ACT_OK;
}

/* Orders are believed like relayed segments: by the Ethernet address that they come from. */
static __always_inline int order_or_other(struct __sk_buff *skb, struct packet *p, bool relayed)
{
	struct flow_key key;

	if (!holding || !relayed || !is_order(p) || !is_service_address(p->destination))
		return TC_ACT_OK;
	if (!key_of_order(skb, p, &key) || role_of(&key).role != ROLE_PRIMARY)
		return drop(COUNT_ORDERS_STRAY);
	return carry_out(skb, p, &key);
}

static __always_inline int inbound(struct __sk_buff *skb, int link)
{
	bool relayed = from_peer(skb, link);
	struct packet p = {};
	struct service *service;
	enum parsed parsed;

	if (link == 0 && !relayed)
		ctl.service_frames++;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return link == 0 ? arp_in(skb) : TC_ACT_OK;
	/* A switch that has forgotten an address floods its frames. What is for another host the
	 * kernel throws away behind this hook; here it would be relayed a second time. */
	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_OK;
	parsed = parse_ip(skb, ETH_HLEN, &p);
	if (parsed == PARSED_OTHER)
		return order_or_other(skb, &p, relayed);
	if (p.fragment && is_service_address(p.destination))
		return drop(COUNT_DROP_FRAGMENT);
	if (parsed == PARSED_ICMP)
		return is_service_address(p.destination) ? icmp_error(skb, &p, relayed) : TC_ACT_OK;
	if (parsed == PARSED_MALFORMED || !parse_tcp(skb, &p))
		return is_service_address(p.destination) ? drop(COUNT_DROP_MALFORMED) : TC_ACT_OK;
	service = service_of(p.destination, p.destination_port);
	if (service && link == 0 && !relayed)
		ctl.client_frames++;
	if (service)
		return to_service(skb, &p, service, relayed);
	if (service_of(p.source, p.source_port))
		return pass_on(skb, &p, relayed);
	return TC_ACT_OK;
}

SEC("tc")
int service_in(struct __sk_buff *skb)
{
	return inbound(skb, 0);
}

SEC("tc")
int cluster_in(struct __sk_buff *skb)
{
	return inbound(skb, 1);
}
