/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Appending to the log ring. The daemon drains it on a timer, not per record: a segment is safe as
 * soon as it is in the ring (that memory is this node's), so waking somebody up for it would only
 * cost the client latency. It is woken when the ring fills up, or when it waits for an event.
 */
#pragma once

static __always_inline __u64 wake_policy(bool urgent)
{
	if (urgent)
		return BPF_RB_FORCE_WAKEUP;
	if (bpf_ringbuf_query(&log_ring, BPF_RB_AVAIL_DATA) >
	    bpf_ringbuf_query(&log_ring, BPF_RB_RING_SIZE) / 8)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

/* A record without payload. False: the ring is full. */
static __always_inline bool log_event(const struct flow_key *key, __u8 kind, __u32 seq, __u32 len,
				      __u32 service, bool urgent)
{
	struct record *r = bpf_ringbuf_reserve(&log_ring, sizeof(*r), 0);

	if (!r)
		return false;
	r->key = *key;
	r->kind = kind;
	r->seq = seq;
	/* Only a segment has bytes behind it; other kinds give the field a meaning of their own. */
	r->len = len;
	r->irs = 0;
	r->service = service;
	r->flags = 0;
	r->pad = 0;
	bpf_ringbuf_submit(r, wake_policy(urgent));
	return true;
}

#define MAX_SUPER_SEGMENT (512 << 10) /* BIG TCP */

struct copy_context {
	struct __sk_buff *skb;
	struct bpf_dynptr *out;
	__u32 from;
	__u32 to;
	__u32 left;
};

static long copy_chunk(__u32 index, void *data)
{
	struct copy_context *c = data;
	__u64 n = c->left < CHUNK ? c->left : CHUNK;
	__u32 zero = 0;
	struct scratch_space *scratch = bpf_map_lookup_elem(&scratch_space, &zero);

	/* The verifier must see the bounds on the very register that is passed on. */
	barrier_var(n);
	if (!scratch || n == 0 || n > CHUNK)
		return 1;
	if (bpf_skb_load_bytes(c->skb, c->from, scratch->words, n) ||
	    bpf_dynptr_write(c->out, c->to, scratch->words, n, 0))
		return 1;
	c->from += n;
	c->to += n;
	c->left -= n;
	return 0;
}

/* A payload into its record, through the scratch space: for kernels without bpf_dynptr_copy. */
static __always_inline bool copy_in_chunks(struct __sk_buff *skb, const struct packet *p,
					   struct bpf_dynptr *out, __u32 at)
{
	struct copy_context c = {
		.skb = skb,
		.out = out,
		.from = p->payload_offset,
		.to = at,
		.left = p->payload_length,
	};

	bpf_loop(MAX_SUPER_SEGMENT / CHUNK, copy_chunk, &c, 0);
	return !c.left;
}

static __always_inline bool copy_payload(struct __sk_buff *skb, const struct packet *p,
					 struct bpf_dynptr *out, __u32 at)
{
	struct bpf_dynptr in;

	if (copy_by_chunks || !bpf_ksym_exists(bpf_dynptr_copy))
		return copy_in_chunks(skb, p, out, at);
	return !bpf_dynptr_from_skb(skb, 0, &in) &&
	       !bpf_dynptr_copy(out, at, &in, p->payload_offset, p->payload_length);
}

/* A record with the segment's payload. False: not logged. */
static __always_inline bool log_payload(struct __sk_buff *skb, const struct packet *p,
					struct record *header, bool urgent)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	struct bpf_dynptr out;

	header->seq = p->seq;
	header->len = p->payload_length;
	/* bpf_dynptr_copy trusts an offset behind the linear part as if it lay inside (the kernel's
	 * skb_pointer_if_linear() subtracts unsigned numbers, 6.18), and takes whatever memory is
	 * there. Drivers that leave the headers in pages would have it so. */
	if (kernel_skb->len - kernel_skb->data_len < p->payload_offset &&
	    bpf_skb_pull_data(skb, p->payload_offset))
		return false;
	if (bpf_ringbuf_reserve_dynptr(&log_ring, sizeof(*header) + p->payload_length, 0, &out) ||
	    bpf_dynptr_write(&out, 0, header, sizeof(*header), 0) ||
	    (p->payload_length && !copy_payload(skb, p, &out, sizeof(*header)))) {
		bpf_ringbuf_discard_dynptr(&out, BPF_RB_NO_WAKEUP);
		return false;
	}
	bpf_ringbuf_submit_dynptr(&out, wake_policy(urgent));
	return true;
}

/* A reply of the primary's that this node passes on at once: its daemon can wait. False: not logged, so it
 * must not go on either. */
static __always_inline bool log_reply(struct __sk_buff *skb, const struct packet *p,
				      const struct flow_key *key)
{
	struct record header = {
		.key = *key,
		.kind = RECORD_REPLY,
	};

	/* A copy of its own, if others hold the packet as well: bpf_redirect_neigh() writes new addresses
	 * in front of it where they are, and a capture of what came would show those. */
	if (bpf_skb_pull_data(skb, p->payload_offset + p->payload_length))
		return false;
	return log_payload(skb, p, &header, false);
}

/* A client segment with its payload. False: not logged, so it must not go on either. */
static __always_inline bool log_segment(struct __sk_buff *skb, const struct packet *p,
					const struct flow_key *key, const struct flow *flow,
					bool urgent)
{
	struct record header = {
		.key = *key,
		.kind = RECORD_SEGMENT,
		.irs = flow->irs,
		.service = flow->service,
		.flags = p->flags & TCP_FIN ? RECORD_FIN : 0,
	};

	if (!log_payload(skb, p, &header, urgent))
		return false;
	count(COUNT_LOGGED);
	count_by(COUNT_LOGGED_BYTES, p->payload_length);
	return true;
}
