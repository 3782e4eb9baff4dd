/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The server's side of a socket: birth of adopted children, output to be swallowed, and death of
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

SEC("sockops")
int sock_events(struct bpf_sock_ops *ops)
{
	struct flow_key key = {};
	struct flow *flow;

	if (ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	if (bpf_get_netns_cookie(ops) != netns_cookie)
		return 1;
	if (ops->family == AF_INET) {
		map_ip4(key.client, ops->remote_ip4);
		map_ip4(key.server, ops->local_ip4);
	} else if (ops->family == AF_INET6) {
		__u32 *client = (__u32 *)key.client, *server = (__u32 *)key.server;

		client[0] = ops->remote_ip6[0];
		client[1] = ops->remote_ip6[1];
		client[2] = ops->remote_ip6[2];
		client[3] = ops->remote_ip6[3];
		server[0] = ops->local_ip6[0];
		server[1] = ops->local_ip6[1];
		server[2] = ops->local_ip6[2];
		server[3] = ops->local_ip6[3];
	} else {
		return 1;
	}
	key.client_port = context_port(ops->remote_port);
	key.server_port = bpf_htons(ops->local_port);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || flow->state != FLOW_ADOPTING || flow->flags & FLOW_BORN)
		return 1;
	flow->flags |= FLOW_BORN;
	flow->snd_max = flow->child_nxt = flow->birth_ack;
	if (flow->swallow)
		bpf_sock_hash_update(ops, &swallowing, &key, BPF_ANY);
	if (flow->replay_end == flow->birth_seq)
		flow->state = FLOW_OPEN;
	/* Not urgent: whoever forged the segment looks for the child when the write returns. */
	log_event(&key, RECORD_BORN, 0, 0, flow->service, false);
	return 1;
}

/* Before TCP sees it: the client has these bytes already. */
SEC("sk_msg")
int swallow(struct sk_msg_md *msg)
{
	struct flow_key key = {};
	struct flow *flow;
	__u32 size = msg->size;

	if (msg->family == AF_INET) {
		map_ip4(key.client, msg->remote_ip4);
		map_ip4(key.server, msg->local_ip4);
	} else {
		__u32 *client = (__u32 *)key.client, *server = (__u32 *)key.server;

		client[0] = msg->remote_ip6[0];
		client[1] = msg->remote_ip6[1];
		client[2] = msg->remote_ip6[2];
		client[3] = msg->remote_ip6[3];
		server[0] = msg->local_ip6[0];
		server[1] = msg->local_ip6[1];
		server[2] = msg->local_ip6[2];
		server[3] = msg->local_ip6[3];
	}
	key.client_port = context_port(msg->remote_port);
	key.server_port = bpf_htons(msg->local_port);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || !flow->swallow)
		return SK_PASS;
	if (size > flow->swallow)
		size = flow->swallow;
	if (bpf_msg_pop_data(msg, 0, size, 0))
		return SK_DROP;
	flow->swallow -= size;
	count_by(COUNT_SWALLOWED_BYTES, size);
	return SK_PASS;
}

#define SOL_SOCKET 1
#define SO_RCVLOWAT 18

/*
 * Rings at every adopted socket that holds unread bytes. To a socket in a socket map kernels with
 * tcp_bpf_ioctl() answer FIONREAD with 0, whatever TCP holds. A server that believes it (nginx does,
 * after a read that filled its buffer) waits for an edge of epoll's that never comes. Setting the
 * low-water mark, to what it is, makes TCP look again whether the socket is readable.
 */
SEC("iter/tcp")
int ring(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct flow_key key = {};
	struct tcp_sock *tcp;
	struct flow *flow;
	int low_water;

	if (!common)
		return 0;
	tcp = bpf_skc_to_tcp_sock(common);
	if (!tcp || tcp->copied_seq == tcp->rcv_nxt)
		return 0;
	key_of_socket(common, &key);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || !(flow->flags & FLOW_BORN))
		return 0;
	low_water = tcp->inet_conn.icsk_inet.sk.sk_rcvlowat;
	bpf_setsockopt(tcp, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof(low_water));
	return 0;
}

/* Signals by which an operator ends a server; any other death by signal is a crash. */
static __always_inline bool is_orderly(__u32 signal)
{
	return signal == 1 || signal == 2 || signal == 3 || signal == 15;
}

/*
 * A crash is silence (C4): a process that dies by a signal would close its connections as if it
 * had meant to. This hook runs in that process, before TCP hears of the close. If another node can carry them, this one fences itself here, before the first FIN
 * or RST is built, and the daemon hands over. Ends by exit(), whatever the status, are the
 * application's own.
 */
SEC("cgroup/sock_release")
int server_close(struct bpf_sock *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sock *sk = bpf_cast_to_kern_ctx(ctx);
	struct flow_key key = {};
	struct service *service;
	struct role_entry role;
	__u32 signal;

	if (!(task->flags & PF_EXITING))
		return 1;
	signal = task->exit_code & 0x7f;
	if (!signal || is_orderly(signal))
		return 1;
	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	key_of_socket(&sk->__sk_common, &key);
	service = service_of(key.server, key.server_port);
	if (!service)
		return 1;
	role = role_of(&key);
	if (role.role != ROLE_PRIMARY || !role.duplex || ctl.crash_fenced)
		return 1;
	ctl.crash_fenced = 1;
	log_event(&key, RECORD_CRASH, signal, 0, service->id, true);
	return 1;
}
