// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The lab's cables. One program pair sits at the switch's end of every cable:
// `from_host` on ingress (what the host sends), `to_host` on egress (what it is
// sent). Neither the host nor the programs it loads can see or move them.
//
// A cable is cut by one aligned 32-bit store into `hosts[h].cut`. All cables of a
// host share that word, so a host is silenced in both directions, on every link,
// by a single store: there is no instant at which half of it is gone.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define WIRE_HOSTS 16
#define WIRE_LINKS 2
// Interface index of the first switch port. Port `host * WIRE_LINKS + link` has
// index WIRE_PORT_BASE + port: the index is chosen at creation, so no lookup.
#define WIRE_PORT_BASE 0x100

enum wire_way { WIRE_FROM_HOST, WIRE_TO_HOST, WIRE_WAYS };

// One direction of one cable, a cache line wide.
struct wire_way_state {
	__u64 dropped; // frames swallowed; written here, atomically; read by the lab
	__u64 room[7]; // zero; for faults to come: loss, duplication, delay, corruption
};

struct wire_host {
	__u32 cut; // bit (link * WIRE_WAYS + way) set: that way is cut; written by the lab
	__u32 pad;
	__u64 room[7];
	struct wire_way_state ways[WIRE_LINKS * WIRE_WAYS];
};

// Key: host number. Written and read as said above; lives as long as the lab.
struct wire_host hosts[WIRE_HOSTS];

static __always_inline int cross(struct __sk_buff *skb, enum wire_way way)
{
	__u64 port = skb->ifindex - (__u64)WIRE_PORT_BASE;
	__u64 host;
	__u32 slot;

	// Without this the compiler checks a copy, and the verifier loses the bound.
	asm volatile("" : "+r"(port));
	if (port >= WIRE_HOSTS * WIRE_LINKS)
		return TC_ACT_OK;
	host = port / WIRE_LINKS;
	slot = (port % WIRE_LINKS) * WIRE_WAYS + way;
	if (*(volatile __u32 *)&hosts[host].cut & (1U << slot)) {
		__sync_fetch_and_add(&hosts[host].ways[slot].dropped, 1);
		return TC_ACT_SHOT;
	}
	return TC_ACT_OK;
}

SEC("tc")
int from_host(struct __sk_buff *skb)
{
	return cross(skb, WIRE_FROM_HOST);
}

SEC("tc")
int to_host(struct __sk_buff *skb)
{
	return cross(skb, WIRE_TO_HOST);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
