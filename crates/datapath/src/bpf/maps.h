/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
#pragma once

/* Fixed at load time. */
const volatile __u32 service_ifindex;
const volatile __u32 cluster_ifindex;
const volatile __u64 netns_cookie;	/* sockets of other namespaces are not ours */
const volatile __be32 own_address4;	/* our address on the service link: what ARP may claim */
const volatile bool copy_by_chunks;	/* as kernels without bpf_dynptr_copy must */
const volatile bool holding;		/* whether there are held services; if not, all that is
					 * done for them is no part of the programs */
const volatile __u32 hold_bytes;	/* unreleased output of one flow before its server blocks */
const volatile __u32 send_buffer;	/* of held sockets, in bytes; 0: the server's own */
const volatile bool replies;		/* whether whole replies go by way of the backup */
const volatile __u32 output_reserve;	/* bytes of the output ring that only events may use */

/* On frames that the data path itself sends out of a link: node_out, which they meet on the way,
 * has either judged them already or must not take them for this node's output. */
#define MARK_PASSED_ON 0x5f7d0001

struct ctl ctl SEC(".data.ctl");

/* The output ring has records of which the daemon has not been told. */
__u32 quiet;

/* Tells it of them after a while. */
struct waker {
	struct bpf_timer timer;
	__u32 pending;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waker);
} wakers SEC(".maps");

const struct generated generated SEC(".rodata.generated") = {};

/* service address and port -> service. Written once by the daemon, read by every hook. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

/* service address -> 1. For what carries no port: ARP, fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address_key);
	__type(value, __u32);
} addresses SEC(".maps");

/* Established flows. Created by the data path when a handshake completes, updated by it with
 * every segment; the daemon moves them through adoption and removes what is over. Never evicted:
 * when the table is full, new flows are simplex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* Handshakes under way; the oldest gives way. Data path only. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct embryo);
} embryos SEC(".maps");

/* Unprotected connections that pass through this backup. Written by the data path, read and
 * emptied by the daemon at promotion. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct stray);
} strays SEC(".maps");

/* The log on its way to the daemon's journal: struct record, then payload. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20);
} log_ring SEC(".maps");

/* Sockets whose writes server_write sees: those that have a gate, and adopted ones whose first
 * output is to be swallowed. Filled by sock_events; emptied by the daemon, by orders, and of sockets
 * that close. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u64);
} watched SEC(".maps");

/* Share -> the daemon's own listener, whose children deliver logged replies to its flows. Written once by
 * the daemon, read by adopt_in. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, SHARES);
	__type(key, __u32);
	__type(value, __u64);
} deliverer SEC(".maps");

/* Gates, kept with their sockets. Made by sock_events at birth, changed by orders. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gate);
} gates SEC(".maps");

/* Held output and what becomes of its sockets, on its way to the daemon: struct output, then
 * payload. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20);
} output_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count_by(enum counter which, __u64 n)
{
	__u32 key = which;
	__u64 *value = bpf_map_lookup_elem(&counters, &key);

	if (value)
		*value += n;
}

static __always_inline void count(enum counter which)
{
	count_by(which, 1);
}

static __always_inline int drop(enum counter why)
{
	count(why);
	return TC_ACT_SHOT;
}
