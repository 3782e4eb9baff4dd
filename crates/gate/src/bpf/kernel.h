/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The few kernel types the gate looks into; CO-RE relocates every access. */
#pragma once

#define CORE __attribute__((preserve_access_index))

struct tcp_options_received {
	__u32 ts_recent;
	__u32 rcv_tsecr;
	__u16 tstamp_ok : 1;
	__u16 snd_wscale : 4;
} CORE;

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd;
	__u32 write_seq;
	struct tcp_options_received rx_opt;
} CORE;

/* 6.16 and later. */
extern int bpf_probe_read_kernel_dynptr(struct bpf_dynptr *dptr, __u64 off, __u64 size,
					const void *unsafe_ptr) __ksym;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_copy(struct bpf_dynptr *dst, __u32 dst_off, struct bpf_dynptr *src,
			   __u32 src_off, __u32 size) __ksym;
