/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
#pragma once

/* Fixed at load time. */
const volatile __u64 netns_cookie;  /* sockets of other namespaces are not ours */
const volatile __u32 hold_bytes;    /* unreleased output of one flow before its server blocks */
const volatile __u32 send_buffer;   /* bytes; 0: the server's own */
const volatile __u32 ring_reserve;  /* bytes of the ring that only events may use */

struct ctl ctl SEC(".data.ctl");

const struct generated generated SEC(".rodata.generated") = {};

/* Held services: address and port -> 1. Written once by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct service_key);
	__type(value, __u32);
} services SEC(".maps");

/* Gates, kept with their sockets. Made at birth, changed by orders. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gate);
} gates SEC(".maps");

/* Sockets whose writes are captured. A socket that closes leaves by itself. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u64);
} captured SEC(".maps");

/* Output and events on their way to the daemon: struct record, then payload. */
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
