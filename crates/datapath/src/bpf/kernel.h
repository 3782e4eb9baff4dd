/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The few kernel types and functions the data path looks into. CO-RE relocates every access, so
 * only the named members matter, not their offsets; declaring them here keeps the build free of a
 * generated vmlinux.h and of the build machine's own kernel.
 */
#pragma once

#define CORE __attribute__((preserve_access_index))

struct k_in6_addr {
	__u8 b[16];
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct k_in6_addr skc_v6_daddr;
	struct k_in6_addr skc_v6_rcv_saddr;
} CORE;

struct sock {
	struct sock_common __sk_common;
	int sk_rcvlowat;
	__u32 sk_ack_backlog;
} CORE;

struct inet_sock {
	struct sock sk;
} CORE;

struct request_sock_queue {
	struct {
		int counter;
	} qlen;
} CORE;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
} CORE;

struct tcp_options_received {
	__u32 ts_recent;
	__u32 rcv_tsecr;
	__u16 tstamp_ok : 1;
	__u16 snd_wscale : 4;
} CORE;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd;
	__u32 write_seq;
	__u32 rcv_nxt;
	__u32 copied_seq;
	struct tcp_options_received rx_opt;
} CORE;

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} CORE;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} CORE;

struct task_struct {
	unsigned int flags;
	int exit_code;
} CORE;

struct sk_buff {
	unsigned int len;
	unsigned int data_len;
	__u8 ip_summed : 2;
} CORE;

struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

#define PF_EXITING 0x00000004

/* time.h */
#define CLOCK_MONOTONIC 1

/* if_packet.h */
#define PACKET_HOST 0

/* skbuff.h */
#define CHECKSUM_NONE 0
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_copy(struct bpf_dynptr *dst, __u32 dst_off, struct bpf_dynptr *src,
			   __u32 src_off, __u32 size) __ksym __weak; /* since 6.16 */
extern int bpf_probe_read_kernel_dynptr(struct bpf_dynptr *dptr, __u64 off, __u64 size,
					const void *unsafe_ptr) __ksym __weak; /* since 6.16 */
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk,
				   struct bpf_tcp_req_attrs *attrs, int attrs__sz) __ksym;
