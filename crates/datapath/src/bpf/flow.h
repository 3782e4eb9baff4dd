/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What a node knows of a flow from the segments that pass through it: the handshake (F2), the
 * client's position in both streams, its window and clock, and the end of the connection (R4).
 *
 * Sequence numbers are compared modulo 2^32 (RFC 9293 §3.4).
 */
#pragma once

#define seq_after(a, b) ((__s32)((a) - (b)) > 0)

/* Of several fields of an entry, the one that others go by is written last. */
#define barrier() asm volatile("" ::: "memory")

/* The widest window there can be (RFC 7323 §2.3) bounds how far an honest segment may stray. */
#define MAX_WINDOW (1u << 30)

static __always_inline __u64 now_ns(void)
{
	return bpf_ktime_get_boot_ns();
}

static __always_inline __u32 now_ms(void)
{
	return now_ns() / 1000000;
}

static __always_inline __u32 now_s(void)
{
	return now_ns() / 1000000000;
}

/* The daemon writes logged replies into a child of its own: only held services have such. */
static __always_inline bool is_delivering(const struct flow *flow)
{
	return holding && flow->state == FLOW_DELIVERING;
}

/* The daemon computes the same (key.rs). */
static __always_inline __u32 share_index(const struct flow_key *key)
{
	const __u32 *words = (const __u32 *)key->client;
	__u32 h = words[0] ^ words[1] ^ words[2] ^ words[3] ^ key->client_port;

	h *= 0x9e3779b1;
	return (h >> 16) % SHARES;
}

static __always_inline struct share *share_of(const struct flow_key *key)
{
	return &ctl.shares[share_index(key)];
}

static __always_inline struct role_entry role_in(const struct share *share)
{
	union {
		__u64 word;
		struct role_entry entry;
	} u;

	u.word = *(volatile __u64 *)&share->role;
	return u.entry;
}

static __always_inline struct role_entry role_of(const struct flow_key *key)
{
	return role_in(share_of(key));
}

/* Does this segment lie near what the flow has seen? What fails here is neither logged nor
 * believed; the primary's TCP would not accept it either. Backwards, a segment may be any old
 * duplicate; forwards, it cannot lie beyond the widest window that the server's scale can express
 * (RFC 7323 §2.3), or else a few forged segments would carry rcv_max away from the client. */
static __always_inline bool plausible(const struct flow *flow, const struct packet *p)
{
	__s32 ahead = p->seq - flow->rcv_max;

	return ahead <= (__s32)(65535u << flow->rcv_wscale) && ahead > -(__s32)MAX_WINDOW;
}

/* The server cannot have sent beyond the window it was given, so neither can the client have
 * acknowledged more (RFC 5961 §5.2); one more, for FIN. */
static __always_inline bool acknowledges_what_was_sent(const struct flow *flow, __u32 ack)
{
	return !seq_after(ack, flow->snd_edge + 1);
}

/* Takes over what a plausible client segment says about acknowledgement, window and clock. */
static __always_inline void follow_client(struct __sk_buff *skb, const struct packet *p,
					  struct flow *flow, __u64 now)
{
	__u32 end = p->seq + p->payload_length + (p->flags & TCP_FIN ? 1 : 0);
	__u32 edge = p->ack + ((__u32)p->window << flow->snd_wscale);
	__s32 progress = p->ack - flow->una;
	__u32 tsval, tsecr;

	flow->seen_s = now / 1000000000;
	if (seq_after(p->seq, flow->rcv_max))
		flow->rcv_run = p->seq;
	if (seq_after(end, flow->rcv_max))
		flow->rcv_max = end;
	if (end != p->seq && seq_after(end, flow->data_max))
		flow->data_max = end;
	if (!(p->flags & TCP_ACK) || !acknowledges_what_was_sent(flow, p->ack))
		return;
	if (progress >= 0) {
		flow->acked += progress;
		flow->una = p->ack;
		flow->window = p->window;
		if (seq_after(edge, flow->snd_edge))
			flow->snd_edge = edge;
	}
	if (flow->options & OPT_TSTAMP && parse_timestamps(skb, p, &tsval, &tsecr)) {
		__u32 delta = tsecr - (__u32)(now / 1000000);

		if (seq_after(tsval, flow->tsval))
			flow->tsval = tsval;
		if (seq_after(delta, flow->ts_delta))
			flow->ts_delta = delta;
	}
}

/* Both ends have sent FIN and the client has acknowledged the server's: nothing to take over. */
static __always_inline bool is_over(const struct flow *flow)
{
	return (flow->flags & FLOW_SERVER_FIN) && (flow->flags & FLOW_CLIENT_FIN) &&
	       flow->una == flow->server_fin + 1;
}

/* A client's SYN: remember what it offers. A retransmission changes nothing. */
static __always_inline void embryo_syn(struct __sk_buff *skb, const struct packet *p,
				       const struct flow_key *key)
{
	struct embryo *known = bpf_map_lookup_elem(&embryos, key);
	struct embryo fresh = {};
	struct tcp_options o;

	if (known && known->irs == p->seq)
		return;
	parse_options(skb, p, &o);
	fresh.irs = p->seq;
	fresh.syn_ms = now_ms();
	fresh.client_window = p->window;
	fresh.client_tsval = o.tsval;
	fresh.client_mss = o.mss;
	fresh.client_wscale = o.wscale;
	fresh.client_options = o.present;
	if ((p->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR))
		fresh.client_options |= OPT_ECN;
	bpf_map_update_elem(&embryos, key, &fresh, BPF_ANY);
	ctl.knows_flows = 1;
}

/* The primary's SYN-ACK on its way to the client: both ISNs and the agreed options are now held
 * by two nodes (F2). */
static __always_inline void embryo_syn_ack(struct __sk_buff *skb, const struct packet *p,
					   const struct flow_key *key)
{
	struct embryo *e = bpf_map_lookup_elem(&embryos, key);
	struct tcp_options o;

	if (!e)
		return;
	parse_options(skb, p, &o);
	e->iss = p->seq;
	e->server_window = p->window;
	e->server_mss = o.mss;
	e->server_wscale = o.wscale;
	e->server_options = o.present & e->client_options;
	if ((e->client_options & OPT_ECN) && (p->flags & TCP_ECE))
		e->server_options |= OPT_ECN;
	e->server_tsval = o.tsval;
	e->server_ts_ms = now_ms();
	e->fast_open = p->ack != e->irs + 1;
	e->answered = 1;
}

/* A segment without a flow: does it complete a handshake that passed through here? Returns the flow,
 * or NULL with *refused telling whether the segment must not go on. */
static __always_inline struct flow *flow_from_embryo(const struct packet *p,
						     const struct flow_key *key, __u32 service,
						     __u32 epoch, bool *refused)
{
	struct embryo *e = bpf_map_lookup_elem(&embryos, key);
	struct flow fresh = {}, *known;
	__u32 sent;

	*refused = false;
	/* Another processor may have handled the client's next segment since the caller looked: it
	 * makes the flow before it removes the handshake. */
	if (!e)
		return bpf_map_lookup_elem(&flows, key);
	if (!e->answered || (p->flags & (TCP_ACK | TCP_SYN | TCP_RST)) != TCP_ACK)
		return NULL;
	/* The handshake's last ACK may be lost: the first data does as well. But the server says
	 * nothing before it has heard one of the two, so both acknowledge its SYN alone. What
	 * acknowledges anything else belongs to another handshake of this client's, with another
	 * node perhaps: its SYN, sent again after the first SYN-ACK was lost, may have been answered
	 * here. */
	sent = p->seq - (e->irs + 1);
	if (sent > MAX_WINDOW || p->ack != e->iss + 1)
		return NULL;
	if (e->fast_open) {
		count(COUNT_FAST_OPEN);
		bpf_map_delete_elem(&embryos, key);
		return NULL;
	}
	fresh.irs = e->irs;
	fresh.iss = e->iss;
	fresh.una = e->iss + 1;
	fresh.rcv_max = e->irs + 1;
	fresh.data_max = e->irs + 1;
	fresh.rcv_run = e->irs + 1;
	fresh.window = p->window;
	/* The SYN's window, which is not scaled, bounds what the server sent first. */
	fresh.snd_edge = e->iss + 1 + 65535;
	fresh.tsval = e->client_tsval;
	fresh.ts_delta = e->server_tsval - e->server_ts_ms;
	fresh.epoch = epoch;
	fresh.seen_s = now_s();
	fresh.service = service;
	fresh.mss = e->client_mss;
	fresh.options = e->server_options;
	fresh.snd_wscale = e->client_wscale;
	fresh.rcv_wscale = e->server_wscale;
	fresh.state = FLOW_TRACKED;
	known = bpf_map_lookup_elem(&flows, key);
	if (known && known->irs != fresh.irs)
		bpf_map_delete_elem(&flows, key);
	if (bpf_map_update_elem(&flows, key, &fresh, BPF_NOEXIST)) {
		/* The client's next segment may be here at the same time, on another processor. */
		known = bpf_map_lookup_elem(&flows, key);
		if (known)
			return known;
		count(COUNT_FLOWS_FULL);
		bpf_map_delete_elem(&embryos, key);
		return NULL;
	}
	if (!log_event(key, RECORD_OPENED, fresh.irs, 0, service, false)) {
		/* Not stable, so it did not happen: the client will send again. */
		bpf_map_delete_elem(&flows, key);
		count(COUNT_DROP_RING_FULL);
		*refused = true;
		return NULL;
	}
	bpf_map_delete_elem(&embryos, key);
	bpf_map_delete_elem(&strays, key);
	return bpf_map_lookup_elem(&flows, key);
}

/* A segment of a connection this backup does not protect. */
static __always_inline void note_stray(const struct packet *p, const struct flow_key *key)
{
	struct stray *known = bpf_map_lookup_elem(&strays, key);
	struct stray fresh = {
		.una = p->ack,
		.flags = p->flags & TCP_FIN ? FLOW_CLIENT_FIN : 0,
	};

	if (p->flags & TCP_RST) {
		bpf_map_delete_elem(&strays, key);
		return;
	}
	if (!(p->flags & TCP_ACK))
		return;
	if (!known) {
		/* Or it is over in this moment, on another processor. */
		bpf_map_update_elem(&strays, key, &fresh, BPF_NOEXIST);
		return;
	}
	known->flags |= fresh.flags;
	if (seq_after(p->ack, known->una))
		known->una = p->ack;
}

/* A connection is over: what its ends still say to each other is none of its own. Said before its
 * entry goes, or another processor finds neither and takes their next segment for a stranger's. */
static __always_inline void leave_stray(const struct flow_key *key)
{
	struct stray over = { .flags = FLOW_SERVER_FIN | FLOW_CLIENT_FIN };

	bpf_map_update_elem(&strays, key, &over, BPF_ANY);
}

/* The server of an unprotected connection sends FIN or RST. */
static __always_inline void end_stray(const struct packet *p, const struct flow_key *key)
{
	struct stray *known = bpf_map_lookup_elem(&strays, key);

	if (p->flags & TCP_RST)
		leave_stray(key);
	else if (known && p->flags & TCP_FIN)
		known->flags |= FLOW_SERVER_FIN;
}
