/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The gate of a held service's socket: its writes are captured, and its segments leave when the
 * daemon says so (docs/decisions/0011-gate-held.md).
 *
 * Writes are copied, never diverted: TCP gets them at once and keeps them in its send queue, where
 * they are what every kernel mechanism takes them for. So SHUT_WR, close(), linger, SIOCOUTQ, epoll
 * and the death of the process need no care here. TCP's own transmission is told -EPERM for a
 * segment that may not leave: it keeps the bytes as unsent, does not shrink its congestion window
 * as it would for a full queue, and tries again with the next acknowledgement, or when its probe
 * timer fires.
 */
#pragma once

#define SOL_SOCKET 1
#define SOL_TCP 6
#define SO_SNDBUF 7
#define TCP_NOTSENT_LOWAT 25

/* Of one run of server_write; the rest of a longer write follows in further runs. */
#define CAPTURE_MAX 32768

/* For a record of the output ring that has its place there. The kernel wakes who has read all that
 * came before, and so nobody once something came quietly. */
static __always_inline __u64 awake(void)
{
	if (!quiet)
		return 0;
	quiet = 0;
	return BPF_RB_FORCE_WAKEUP;
}

/* False: there was no place for it, which is counted. */
static __always_inline bool report(const struct flow_key *key, enum output_kind kind, __u32 seq)
{
	struct output *output = bpf_ringbuf_reserve(&output_ring, sizeof(*output), 0);

	if (!output) {
		count(COUNT_EVENTS_LOST);
		return false;
	}
	output->kind = kind;
	output->seq = seq;
	output->length = 0;
	output->una = 0;
	output->gated = 0;
	output->key = *key;
	bpf_ringbuf_submit(output, awake());
	return true;
}

/* Is a connection that begins now to be held? While it has no backup it is simplex, and its output
 * leaves as it comes: also that of an adopted one, whose replies the last backup is gone with. */
static __always_inline bool is_held(const struct flow_key *key)
{
	struct role_entry role = role_of(key);
	struct service *service;

	if (role.role != ROLE_PRIMARY || !role.duplex)
		return false;
	service = service_of(key->server, key->server_port);
	return service && service->held;
}

/* Does this gate hold nothing any more? By an order; or since a segment or a write met it while its
 * flow had no backup. That is for good: the next backup has not seen what left meanwhile. */
static __always_inline bool is_open(struct gate *gate)
{
	struct role_entry role;

	if (gate->open)
		return true;
	role = role_of(&gate->key);
	if (role.role != ROLE_PRIMARY || role.duplex)
		return false;
	gate->open = 1;
	return true;
}

/* Gives a connection its gate and its place in the socket map. The handshake is over and nobody has
 * accepted yet, so no byte has been written. */
static __always_inline bool hold(struct bpf_sock_ops *ops, struct flow_key *key, bool adopted,
				 bool swallows)
{
	int lowat = hold_bytes, buffer = send_buffer;
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp;
	struct gate *gate;

	tcp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;
	gate = tcp ? bpf_sk_storage_get(&gates, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (!gate)
		goto unheld;
	gate->released = tcp->write_seq;
	gate->ahead = tcp->write_seq;
	gate->captured = tcp->write_seq;
	gate->whole = tcp->write_seq;
	gate->adopted = adopted;
	gate->swallows = swallows;
	gate->key = *key;
	/* Held output is unsent output: this is what makes the server wait (man 7 tcp). */
	if (bpf_setsockopt(ops, SOL_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat)) ||
	    (buffer && bpf_setsockopt(ops, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer))) ||
	    bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
					   BPF_SOCK_OPS_STATE_CB_FLAG) ||
	    bpf_sock_hash_update(ops, &watched, key, BPF_ANY)) {
		bpf_sk_storage_delete(&gates, sk);
		goto unheld;
	}
	count(COUNT_HELD_FLOWS);
	return true;
unheld:
	count(COUNT_UNHELD_FLOWS);
	report(key, OUTPUT_UNHELD, 0);
	return false;
}

/* shutdown() and close() change the state before TCP queues its FIN: the FIN will be at write_seq.
 * For a server that has crashed the kernel closes, behind the fence. */
static __always_inline void moved(struct bpf_sock_ops *ops, __u32 from, __u32 to)
{
	bool running = from == BPF_TCP_ESTABLISHED || from == BPF_TCP_CLOSE_WAIT;
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp;
	struct gate *gate;

	if (!sk || !(to == BPF_TCP_CLOSE ||
		     (running && (to == BPF_TCP_FIN_WAIT1 || to == BPF_TCP_LAST_ACK))))
		return;
	tcp = bpf_skc_to_tcp_sock(sk);
	gate = bpf_sk_storage_get(&gates, sk, NULL, 0);
	if (!tcp || !gate)
		return;
	if (to != BPF_TCP_CLOSE)
		report(&gate->key, share_of(&gate->key)->crash_fenced ? OUTPUT_CRASHED : OUTPUT_ENDED,
		       tcp->write_seq);
	else
		report(&gate->key, running ? OUTPUT_ABORTED : OUTPUT_GONE, tcp->write_seq);
}

/* What came quietly has to be told after all. */
static __always_inline void wake_daemon(void)
{
	void *nothing;

	if (!quiet)
		return;
	nothing = bpf_ringbuf_reserve(&output_ring, sizeof(__u64), 0);
	if (nothing)
		bpf_ringbuf_discard(nothing, awake());
}

/* How long a reply that has begun may keep the daemon asleep: a server writes its head and its body one
 * after the other. It may also have ended there, as replies to HEAD do. */
#define BEGUN_NS 1000000

static int begun_is_over(void *map, __u32 *key, struct waker *waker)
{
	waker->pending = 0;
	wake_daemon();
	return 0;
}

static __always_inline void wake_daemon_soon(void)
{
	__u32 only = 0;
	struct waker *waker = bpf_map_lookup_elem(&wakers, &only);

	if (!waker || waker->pending)
		return;
	waker->pending = 1;
	/* The first call of all makes the timer, any other one finds it. */
	bpf_timer_init(&waker->timer, &wakers, CLOCK_MONOTONIC);
	if (bpf_timer_set_callback(&waker->timer, begun_is_over) ||
	    bpf_timer_start(&waker->timer, BEGUN_NS, 0)) {
		waker->pending = 0;
		wake_daemon();
	}
}

/* What lies before it may leave. What its client has acknowledged has left: the backup gives no order
 * for what it passes on. */
static __always_inline __u32 edge_of(const struct gate *gate, __u32 una)
{
	return replies && seq_after(una, gate->released) ? una : gate->released;
}

/* Are these bytes, with what lies in front of them, perhaps a reply that goes by way of the backup? What
 * becomes of them is seen when TCP sends them, which their client lets it do at once, and nobody need
 * hurry until then. */
static __always_inline bool may_be_whole(const struct gate *gate, const struct tcp_sock *tcp,
					 __u32 length)
{
	__u32 unacknowledged = tcp->write_seq + length - tcp->snd_una;

	return replies && !gate->adopted && unacknowledged <= REPLY_MAX &&
	       unacknowledged <= tcp->snd_wnd &&
	       bpf_ringbuf_query(&output_ring, BPF_RB_AVAIL_DATA) <
		       bpf_ringbuf_query(&output_ring, BPF_RB_RING_SIZE) / 8;
}

/* Room in the ring that output may take: events keep a part of it for themselves. */
static __always_inline bool has_room(__u32 length)
{
	return bpf_ringbuf_query(&output_ring, BPF_RB_AVAIL_DATA) + length + output_reserve <=
	       bpf_ringbuf_query(&output_ring, BPF_RB_RING_SIZE);
}

static __always_inline void lose(struct gate *gate, __u32 seq)
{
	gate->lost = 1;
	count(COUNT_OUTPUT_LOST);
	report(&gate->key, OUTPUT_LOST, seq);
}

/* What lies from `seq` on is not what the daemon was given, so it is not what it released. */
static __always_inline void take_back(struct gate *gate, __u32 seq)
{
	if (seq_after(gate->released, seq))
		gate->released = seq;
}

/* Before the byte that is to be written now, as many bytes have passed unseen as were offered last;
 * before those is what TCP took of the offer. What it has sent cannot be taken back. */
static __always_inline void cut_short(struct gate *gate, const struct tcp_sock *tcp)
{
	__u32 taken = tcp->write_seq - gate->offered;

	if (!gate->offered)
		return;
	count(COUNT_CUT_SHORT);
	gate->offered = 0;
	if (seq_after(tcp->snd_nxt, taken))
		taken = tcp->snd_nxt;
	if (seq_after(gate->captured, taken))
		gate->captured = taken;
	take_back(gate, gate->captured);
}

/*
 * A write of the server, in its own system call, before TCP gets it. Runs once for each contiguous
 * piece of at most CAPTURE_MAX bytes.
 *
 * TCP may take less than the piece: a full socket that does not block, a signal. The server is told
 * how much. But the kernel then lets the next piece of the same length pass without asking this
 * program again (the verdict is remembered until so many bytes have passed). So what has been
 * captured beyond TCP's end is void, and what follows is captured from the segments instead
 * (recapture()), until that has caught up with the writes.
 */
static __always_inline void capture(struct sk_msg_md *msg, struct gate *gate)
{
	struct output output = { .kind = OUTPUT_BYTES };
	struct bpf_sock *sk = msg->sk;
	struct bpf_dynptr room;
	struct tcp_sock *tcp;
	void *data = msg->data;
	__u32 length = (__u64)msg->data_end - (__u64)data;
	bool hurry;

	tcp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;
	if (!tcp || is_open(gate) || gate->lost || !msg->size)
		return;
	output.seq = tcp->write_seq;
	if (output.seq != gate->captured) {
		cut_short(gate, tcp);
		return;
	}
	if (length > CAPTURE_MAX)
		length = CAPTURE_MAX;
	output.length = length;
	output.una = tcp->snd_una;
	output.gated = !gate->preceded;
	output.key = gate->key;
	/* No length: pages that the kernel will not show. */
	if (!length || !has_room(length)) {
		lose(gate, output.seq);
		return;
	}
	hurry = !may_be_whole(gate, tcp, length);
	if (!hurry)
		quiet = 1;
	if (bpf_ringbuf_reserve_dynptr(&output_ring, sizeof(output) + length, 0, &room))
		goto lost;
	if (bpf_dynptr_write(&room, 0, &output, sizeof(output), 0) ||
	    bpf_probe_read_kernel_dynptr(&room, sizeof(output), length, data))
		goto lost;
	/* First, or else the order could be here before. */
	gate->captured = output.seq + length;
	gate->offered = length;
	bpf_ringbuf_submit_dynptr(&room, hurry ? awake() : BPF_RB_NO_WAKEUP);
	/* Another processor may have told of what came before. */
	if (!hurry)
		quiet = 1;
	bpf_msg_apply_bytes(msg, length);
	count_by(COUNT_CAPTURED_BYTES, length);
	return;
lost:
	bpf_ringbuf_discard_dynptr(&room, 0);
	lose(gate, output.seq);
}

/*
 * What capture() could not see: see there. The first segment that TCP would send next is always
 * seen here, whether it may leave or not.
 *
 * The segment is copied whole, with bytes that had been captured before: with a source offset
 * behind the linear part bpf_dynptr_copy() reads what is not the packet (Linux 6.18:
 * skb_pointer_if_linear() subtracts unsigned). The payload begins where the linear part ends.
 */
static __always_inline void recapture(struct __sk_buff *skb, const struct packet *p,
				      struct gate *gate)
{
	struct output output = { .kind = OUTPUT_BYTES, .seq = p->seq, .key = gate->key };
	struct bpf_dynptr packet, room;
	__u32 length = p->payload_length;

	if (gate->lost)
		return;
	output.length = length;
	if (!has_room(length) || bpf_dynptr_from_skb(skb, 0, &packet)) {
		lose(gate, gate->captured);
		return;
	}
	if (bpf_ringbuf_reserve_dynptr(&output_ring, sizeof(output) + length, 0, &room) ||
	    bpf_dynptr_write(&room, 0, &output, sizeof(output), 0) ||
	    bpf_dynptr_copy(&room, sizeof(output), &packet, p->payload_offset, length)) {
		bpf_ringbuf_discard_dynptr(&room, 0);
		lose(gate, gate->captured);
		return;
	}
	take_back(gate, p->seq);
	gate->captured = p->seq + length;
	/* What TCP has taken of the last offer is known now. */
	if (gate->offered)
		count(COUNT_CUT_SHORT);
	gate->offered = 0;
	bpf_ringbuf_submit_dynptr(&room, awake());
	count_by(COUNT_RECAPTURED_BYTES, length);
}

/* May this segment not leave? */
static __always_inline bool refuses(struct __sk_buff *skb, const struct packet *p,
				    struct gate *gate, __u32 edge)
{
	__u32 end = p->seq + p->payload_length;

	/* The server threw its own output away: nothing is left that could be held. */
	if (p->flags & TCP_RST)
		return false;
	if (seq_after(end, gate->captured) && !seq_after(p->seq, gate->captured))
		recapture(skb, p, gate);
	if (p->flags & TCP_FIN)
		end++;
	return end != p->seq && seq_after(end, edge) && seq_after(end, gate->ahead);
}

/* The gate of the socket that built this segment, unless it is open, and what its client has
 * acknowledged. */
static __always_inline struct gate *closed_gate_of(struct __sk_buff *skb, __u32 *una)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp;
	struct gate *gate;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	gate = sk ? bpf_sk_storage_get(&gates, sk, NULL, 0) : NULL;
	if (!gate || is_open(gate))
		return NULL;
	tcp = bpf_tcp_sock(sk);
	*una = gate->released;
	/* Or the compiler selects a pointer, which the verifier does not allow. */
	barrier();
	if (tcp)
		*una = tcp->snd_una;
	return gate;
}

/*
 * A refused segment waits for an order, and the order for two daemons to be woken and to speak. A reply
 * that is one packet need not wait: it goes to the backup as it is, whose kernel logs it and passes it on.
 * To TCP it is sent, and is sent again if nobody acknowledges it. So that nothing leaves before what lies
 * in front of it, it must begin where its client's acknowledgement stands; and end where its server has
 * ended, or it would not be whole.
 */
static __always_inline enum reply reply_of(struct __sk_buff *skb, const struct packet *p,
					   const struct gate *gate, __u32 una)
{
	struct role_entry role;

	if (!replies || gate->adopted || gate->lost || !ctl.relay.ifindex)
		return REPLY_UNCLEAR;
	/* One packet on its way to the client, too, whose path may be narrower than the cluster link. */
	if (skb->gso_segs > 1 || p->flags & (TCP_SYN | TCP_FIN | TCP_RST) || p->seq != una ||
	    p->seq + p->payload_length != gate->captured)
		return REPLY_UNCLEAR;
	role = role_of(&gate->key);
	if (role.role != ROLE_PRIMARY || !role.duplex)
		return REPLY_UNCLEAR;
	/* Only node_out sends it to the backup: on any other way it would leave. */
	if (skb->ifindex != service_ifindex && skb->ifindex != cluster_ifindex)
		return REPLY_UNCLEAR;
	return read_reply(skb, p);
}

enum leave {
	LEAVES,
	LEAVES_BY_BACKUP,
	STAYS,
};

/* What becomes of a segment of a held socket's on the link. */
static __always_inline enum leave judge(struct __sk_buff *skb, const struct packet *p)
{
	__u32 una;
	struct gate *gate = closed_gate_of(skb, &una);

	if (!gate || !refuses(skb, p, gate, edge_of(gate, una)))
		return LEAVES;
	/* Read by gate_out. */
	if (replies && p->payload_length && p->seq == una && p->seq + p->payload_length == gate->whole)
		return LEAVES_BY_BACKUP;
	return STAYS;
}

SEC("cgroup_skb/egress")
int gate_out(struct __sk_buff *skb)
{
	__u32 una, edge;
	struct gate *gate = closed_gate_of(skb, &una);
	struct packet p = {};
	enum reply reply;

	if (!gate)
		return 1;
	/* What cannot be read has not been judged. */
	if (parse_ip(skb, 0, &p) != PARSED_TCP || !parse_tcp(skb, &p))
		return 0;
	edge = edge_of(gate, una);
	if (!refuses(skb, &p, gate, edge))
		return 1;
	reply = reply_of(skb, &p, gate, una);
	if (reply == REPLY_WHOLE) {
		/* It went before, and nobody has acknowledged it: the other way is open, too. */
		if (gate->whole == p.seq + p.payload_length)
			wake_daemon();
		gate->whole = p.seq + p.payload_length;
		return 1;
	}
	count(COUNT_REFUSED);
	if (seq_after(edge, p.seq))
		count(COUNT_STRADDLING);
	if (reply == REPLY_BEGUN)
		wake_daemon_soon();
	else
		wake_daemon();
	return 0;
}
