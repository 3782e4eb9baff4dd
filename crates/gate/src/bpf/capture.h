/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the server does with its socket: birth of a gate, every write, shutdown, close.
 *
 * Writes are copied, never diverted: TCP gets them at once and keeps them in its send queue, where
 * they are what every kernel mechanism takes them for. So SHUT_WR, close(), linger, SIOCOUTQ, epoll
 * and the death of the process need no care here.
 */
#pragma once

#define AF_INET 2
#define AF_INET6 10
#define SOL_SOCKET 1
#define SOL_TCP 6
#define SO_SNDBUF 7
#define TCP_NOTSENT_LOWAT 25

/* Of one run of `capture`; the rest of a longer write follows in further runs. */
#define CAPTURE_MAX 32768

static __always_inline bool seq_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline void map_ip4(__u8 *out, __be32 address)
{
	__builtin_memset(out, 0, 10);
	out[10] = 0xff;
	out[11] = 0xff;
	__builtin_memcpy(out + 12, &address, 4);
}

static __always_inline bool key_of(struct bpf_sock_ops *ops, struct flow_key *key)
{
	if (ops->family == AF_INET) {
		map_ip4(key->client, ops->remote_ip4);
		map_ip4(key->server, ops->local_ip4);
	} else if (ops->family == AF_INET6) {
		__u32 *client = (__u32 *)key->client, *server = (__u32 *)key->server;

		client[0] = ops->remote_ip6[0];
		client[1] = ops->remote_ip6[1];
		client[2] = ops->remote_ip6[2];
		client[3] = ops->remote_ip6[3];
		server[0] = ops->local_ip6[0];
		server[1] = ops->local_ip6[1];
		server[2] = ops->local_ip6[2];
		server[3] = ops->local_ip6[3];
	} else {
		return false;
	}
	/* The kernel keeps it in the upper half on little-endian machines. */
	key->client_port = bpf_htons(bpf_ntohl(ops->remote_port));
	key->server_port = bpf_htons(ops->local_port);
	return true;
}

static __always_inline bool is_held(const struct flow_key *key)
{
	struct service_key service = { .port = key->server_port };

	__builtin_memcpy(service.address, key->server, 16);
	return bpf_map_lookup_elem(&services, &service);
}

static __always_inline void report(const struct gate *gate, enum record_kind kind, __u32 seq)
{
	struct record *record = bpf_ringbuf_reserve(&output_ring, sizeof(*record), 0);

	if (!record) {
		count(COUNT_RECORDS_FAILED);
		return;
	}
	record->kind = kind;
	record->seq = seq;
	record->length = 0;
	record->key = gate->key;
	bpf_ringbuf_submit(record, 0);
}

/* The handshake is over and nobody has accepted yet, so no byte has been written. */
static __always_inline void born(struct bpf_sock_ops *ops)
{
	int lowat = hold_bytes, buffer = send_buffer;
	struct flow_key key = {};
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp;
	struct gate *gate;

	if (!ctl.hold || bpf_get_netns_cookie(ops) != netns_cookie)
		return;
	if (!key_of(ops, &key) || !is_held(&key))
		return;
	tcp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;
	gate = tcp ? bpf_sk_storage_get(&gates, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (!gate)
		goto unheld;
	gate->released = tcp->write_seq;
	gate->captured = tcp->write_seq;
	gate->key = key;
	/* Held output is unsent output: this is what makes the server wait (man 7 tcp). */
	if (bpf_setsockopt(ops, SOL_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat)) ||
	    (buffer && bpf_setsockopt(ops, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer))) ||
	    bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
					   BPF_SOCK_OPS_STATE_CB_FLAG) ||
	    bpf_sock_hash_update(ops, &captured, &key, BPF_ANY)) {
		bpf_sk_storage_delete(&gates, sk);
		goto unheld;
	}
	count(COUNT_HELD_FLOWS);
	return;
unheld:
	count(COUNT_UNHELD_FLOWS);
}

/* shutdown() and close() change the state before TCP queues its FIN: the FIN will be at write_seq. */
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
		report(gate, RECORD_ENDED, tcp->write_seq);
	else
		report(gate, running ? RECORD_ABORTED : RECORD_GONE, tcp->write_seq);
}

SEC("sockops")
int sock_moves(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		born(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		moved(ops, ops->args[0], ops->args[1]);
		break;
	}
	return 1;
}

/* Room in the ring that output may take: events keep a part of it for themselves. */
static __always_inline bool has_room(__u32 length)
{
	return bpf_ringbuf_query(&output_ring, BPF_RB_AVAIL_DATA) + length + ring_reserve <=
	       bpf_ringbuf_query(&output_ring, BPF_RB_RING_SIZE);
}

static __always_inline void lose(struct gate *gate, __u32 seq)
{
	gate->lost = 1;
	count(COUNT_LOST);
	report(gate, RECORD_LOST, seq);
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
}

/*
 * A write of the server, in its own system call, before TCP gets it. Runs once for each contiguous
 * piece of at most CAPTURE_MAX bytes.
 *
 * TCP may take less than the piece: a full socket that does not block, a signal. The server is told
 * how much. But the kernel then lets the next piece of the same length pass without asking this
 * program again (the verdict is remembered until so many bytes have passed). So what has been
 * captured beyond TCP's end is void, and what follows is captured from the segments instead
 * (recapture() in verdict.h), until that has caught up with the writes.
 */
SEC("sk_msg")
int capture(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct record record = { .kind = RECORD_OUTPUT };
	struct bpf_dynptr room;
	struct tcp_sock *tcp;
	struct gate *gate;
	void *data = msg->data;
	__u32 length = (__u64)msg->data_end - (__u64)data;

	if (!sk)
		return SK_PASS;
	gate = bpf_sk_storage_get(&gates, sk, NULL, 0);
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!gate || !tcp || gate->open || gate->lost || !msg->size)
		return SK_PASS;
	record.seq = tcp->write_seq;
	if (record.seq != gate->captured) {
		cut_short(gate, tcp);
		return SK_PASS;
	}
	if (length > CAPTURE_MAX)
		length = CAPTURE_MAX;
	record.length = length;
	record.key = gate->key;
	/* No length: pages that the kernel will not show. */
	if (!length || !has_room(length)) {
		lose(gate, record.seq);
		return SK_PASS;
	}
	if (bpf_ringbuf_reserve_dynptr(&output_ring, sizeof(record) + length, 0, &room))
		goto lost;
	if (bpf_dynptr_write(&room, 0, &record, sizeof(record), 0) ||
	    bpf_probe_read_kernel_dynptr(&room, sizeof(record), length, data))
		goto lost;
	bpf_ringbuf_submit_dynptr(&room, 0);
	bpf_msg_apply_bytes(msg, length);
	gate->captured = record.seq + length;
	gate->offered = length;
	count_by(COUNT_CAPTURED_BYTES, length);
	return SK_PASS;
lost:
	bpf_ringbuf_discard_dynptr(&room, 0);
	lose(gate, record.seq);
	return SK_PASS;
}
