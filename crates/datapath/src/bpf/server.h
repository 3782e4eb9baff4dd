/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The server's side of a socket: birth, writes that are swallowed or captured, reads, and death of
 * the process.
 */
#pragma once

#define AF_INET 2
#define AF_INET6 10

/* The remote port of sockops and sk_msg contexts: network order, in the upper half on
 * little-endian machines, as the kernel stores it. */
static __always_inline __be16 context_port(__u32 remote_port)
{
	return bpf_htons(bpf_ntohl(remote_port));
}

static __always_inline void key_of_socket(struct sock_common *sk, struct flow_key *key)
{
	if (sk->skc_family == AF_INET) {
		map_ip4(key->server, sk->skc_rcv_saddr);
		map_ip4(key->client, sk->skc_daddr);
	} else {
		__builtin_memcpy(key->server, sk->skc_v6_rcv_saddr.b, 16);
		__builtin_memcpy(key->client, sk->skc_v6_daddr.b, 16);
	}
	key->server_port = bpf_htons(sk->skc_num);
	key->client_port = sk->skc_dport;
}

/* Contexts of sockops and sk_msg name their fields alike. False: neither IPv4 nor IPv6. */
#define key_of_context(context, key)                                          \
	({                                                                    \
		__u32 *client = (__u32 *)(key)->client;                       \
		__u32 *server = (__u32 *)(key)->server;                       \
		bool known = true;                                            \
                                                                              \
		if ((context)->family == AF_INET) {                           \
			map_ip4((key)->client, (context)->remote_ip4);        \
			map_ip4((key)->server, (context)->local_ip4);         \
		} else if ((context)->family == AF_INET6) {                   \
			client[0] = (context)->remote_ip6[0];                 \
			client[1] = (context)->remote_ip6[1];                 \
			client[2] = (context)->remote_ip6[2];                 \
			client[3] = (context)->remote_ip6[3];                 \
			server[0] = (context)->local_ip6[0];                  \
			server[1] = (context)->local_ip6[1];                  \
			server[2] = (context)->local_ip6[2];                  \
			server[3] = (context)->local_ip6[3];                  \
		} else {                                                      \
			known = false;                                        \
		}                                                             \
		(key)->client_port = context_port((context)->remote_port);    \
		(key)->server_port = bpf_htons((context)->local_port);        \
		known;                                                        \
	})

/* An adopted child has reached its listener, or a client's connection has. */
static __always_inline void established(struct bpf_sock_ops *ops)
{
	struct flow_key key = {};
	struct flow *flow;
	bool delivers, held;

	if (bpf_get_netns_cookie(ops) != netns_cookie || !key_of_context(ops, &key))
		return;
	flow = bpf_map_lookup_elem(&flows, &key);
	delivers = flow && is_delivering(flow);
	if (flow && ((flow->state != FLOW_ADOPTING && !delivers) || flow->child))
		flow = NULL;
	/* What the daemon delivers is logged already. */
	held = holding && !delivers && is_held(&key) && hold(ops, &key, flow, flow && flow->swallow);
	if (!flow)
		return;
	flow->snd_max = flow->child_nxt = flow->birth_ack;
	barrier();
	flow->child = held ? CHILD_HELD : CHILD_BORN;
	if (!delivers) {
		if (flow->swallow && !held)
			bpf_sock_hash_update(ops, &watched, &key, BPF_ANY);
		if (flow->replay_end == flow->birth_seq)
			flow->state = FLOW_OPEN;
	}
	/* Not urgent: whoever forged the segment looks for the child when the write returns. */
	log_event(&key, RECORD_BORN, 0, 0, flow->service, false);
}

SEC("sockops")
int sock_events(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		established(ops);
	/* Asked for by sockets that have a gate. */
	else if (holding && ops->op == BPF_SOCK_OPS_STATE_CB)
		moved(ops, ops->args[0], ops->args[1]);
	return 1;
}

/* Before TCP sees it: the client has these bytes already. False: they cannot be removed. */
static __always_inline bool swallow(struct sk_msg_md *msg)
{
	struct flow_key key = {};
	struct flow *flow;
	__u32 size = msg->size;

	if (!key_of_context(msg, &key))
		return true;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || !flow->swallow)
		return true;
	if (size > flow->swallow)
		size = flow->swallow;
	if (bpf_msg_pop_data(msg, 0, size, 0))
		return false;
	flow->swallow -= size;
	count_by(COUNT_SWALLOWED_BYTES, size);
	return true;
}

/* A write to a watched socket. What is left of it behind the swallowed part is what TCP gets, so
 * that is what the gate captures. */
SEC("sk_msg")
int server_write(struct sk_msg_md *msg)
{
	struct gate *gate = NULL;

	if (holding && msg->sk)
		gate = bpf_sk_storage_get(&gates, msg->sk, NULL, 0);
	if ((!gate || gate->swallows) && !swallow(msg))
		return SK_DROP;
	if (gate)
		capture(msg, gate);
	return SK_PASS;
}

#define SO_RCVLOWAT 18

/*
 * Rings at sockets that hold unread bytes: at every adopted one, and at held ones whose server has
 * read and left some. To a socket in a socket map kernels with tcp_bpf_ioctl() answer FIONREAD with
 * 0, whatever TCP holds. A server that believes it (nginx does, after a read that filled its buffer)
 * waits for an edge of epoll's that never comes. Setting the low-water mark, to what it is, makes
 * TCP look again whether the socket is readable.
 */
SEC("iter/tcp")
int ring(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct flow_key key = {};
	struct gate *gate = NULL;
	struct tcp_sock *tcp;
	struct flow *flow;
	bool reported;
	int low_water;

	if (!common)
		return 0;
	tcp = bpf_skc_to_tcp_sock(common);
	if (!tcp)
		return 0;
	if (holding)
		gate = bpf_sk_storage_get(&gates, tcp, NULL, 0);
	reported = gate && gate->unread;
	/* Also of who has read the rest meanwhile: or what it leaves next would not be reported. */
	if (reported)
		gate->unread = 0;
	if (tcp->copied_seq == tcp->rcv_nxt)
		return 0;
	if (!reported) {
		key_of_socket(common, &key);
		flow = bpf_map_lookup_elem(&flows, &key);
		if (!flow || !flow->child)
			return 0;
	}
	low_water = tcp->inet_conn.icsk_inet.sk.sk_rcvlowat;
	bpf_setsockopt(tcp, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof(low_water));
	return 0;
}

/*
 * The flows of all sockets that have a gate, for who opens them all. The socket map does not tell: it
 * forgets a socket that its server has closed, whatever that still holds.
 */
SEC("iter/tcp")
int list_gates(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct gate *gate = NULL;
	struct tcp_sock *tcp;

	tcp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	if (tcp)
		gate = bpf_sk_storage_get(&gates, tcp, NULL, 0);
	if (gate)
		bpf_seq_write(ctx->meta->seq, &gate->key, sizeof(gate->key));
	return 0;
}

/*
 * A server has read from a held socket, in its own system call, with the socket locked. A held socket
 * is in the socket map for all its life, so that ringing by a timer would be for ever; but the server
 * can be misled only when it has left bytes unread. Reported once until somebody rings.
 */
SEC("tp_btf/tcp_rcv_space_adjust")
int server_read(__u64 *context)
{
	struct sock *sk = (struct sock *)context[0];
	struct gate *gate = bpf_sk_storage_get(&gates, sk, NULL, 0);
	struct tcp_sock *tcp;

	if (!gate || gate->opened || gate->unread)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp || tcp->copied_seq == tcp->rcv_nxt)
		return 0;
	gate->unread = report(&gate->key, OUTPUT_UNREAD, 0);
	return 0;
}

/* Signals by which an operator ends a server; any other death by signal is a crash. */
static __always_inline bool is_orderly(__u32 signal)
{
	return signal == 1 || signal == 2 || signal == 3 || signal == 15;
}

/* Closes the fence of the flows that another node can carry. False: there are none any more. */
static __always_inline bool fence_crash(void)
{
	struct role_entry role;
	bool fenced = false;
	int i;

	for (i = 0; i < SHARES; i++) {
		role = role_in(&ctl.shares[i]);
		if (role.role != ROLE_PRIMARY || !role.duplex || ctl.shares[i].crash_fenced)
			continue;
		ctl.shares[i].crash_fenced = 1;
		fenced = true;
	}
	return fenced;
}

/* Whether connections that no server has accepted would be reset with this listener. */
static __always_inline bool forsakes(struct sock *sk)
{
	struct inet_connection_sock *listener;

	if (sk->__sk_common.skc_state != BPF_TCP_LISTEN)
		return false;
	listener = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct inet_connection_sock));
	return sk->sk_ack_backlog || listener->icsk_accept_queue.qlen.counter;
}

/*
 * A crash is silence (C4): a process that dies by a signal would close its connections as if it
 * had meant to. This hook runs in that process, before TCP hears of the close. If another node can
 * carry them, this one fences itself here, before the first FIN or RST is built, and the daemon
 * hands over. Ends by exit(), whatever the status, are the application's own; but no application
 * has ended what it never accepted, so a listener's last close is fenced alike if there is any.
 */
SEC("cgroup/sock_release")
int server_close(struct bpf_sock *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sock *sk = bpf_cast_to_kern_ctx(ctx);
	struct flow_key key = {};
	struct service *service;
	__u32 signal = task->flags & PF_EXITING ? task->exit_code & 0x7f : 0;

	if (is_orderly(signal))
		signal = 0;
	if (!signal && !forsakes(sk))
		return 1;
	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	key_of_socket(&sk->__sk_common, &key);
	service = service_of(key.server, key.server_port);
	if (!service)
		return 1;
	if (!fence_crash())
		return 1;
	log_event(&key, RECORD_CRASH, signal, 0, service->id, true);
	return 1;
}
