// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The lab's cables. One program pair sits at the switch's end of every cable:
// `from_host` on ingress (what the host sends), `to_host` on egress (what it is
// sent). Neither the host nor the programs it loads can see or move them.
//
// A cable is cut by one aligned 32-bit store into `hosts[h].cut`. All cables of a
// host share that word, so a host is silenced in both directions, on every link,
// by a single store: there is no instant at which half of it is gone.
//
// A frame goes through these stages, each of which may end its journey:
// cut, loss, duplication, corruption, delay, trip. Corruption and delay need what
// a BPF program cannot do (complete a checksum that is only promised; hold a frame),
// so they send the frame on a detour: a TAP that the lab reads and writes. `back`
// sits there and returns the frame to its cable, marked with the stage it is past.
// Marks cannot come from hosts: the kernel clears them between network namespaces.
//
// A frame is what the kernel hands over as one: a super-segment of segmentation
// offload is lost, doubled, delayed and counted as one.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define WIRE_HOSTS 16
#define WIRE_LINKS 2
// Interface index of the first switch port. Port `host * WIRE_LINKS + link` has
// index WIRE_PORT_BASE + port: the index is chosen at creation, so no lookup.
#define WIRE_PORT_BASE 0x100
// Likewise of the detours: DETOUR_BASE + (port * WIRE_WAYS + way) * DETOURS + detour.
#define DETOUR_BASE 0x200

enum wire_way { WIRE_FROM_HOST, WIRE_TO_HOST, WIRE_WAYS };

#define EVERY_CABLE ((1U << (WIRE_LINKS * WIRE_WAYS)) - 1)

enum detour { DETOUR_CORRUPT, DETOUR_DELAY, DETOURS };

// skb->mark of a frame that is past these stages of its cable.
#define MARK_DAMAGED 0x57465344U
#define MARK_DELAYED 0x57465345U

// What is on, on one way of a cable.
#define ON_DICE 1U  // loss, duplication, corruption
#define ON_DELAY 2U // delay, jitter, reordering: every frame takes the detour
#define ON_TRIP 4U

enum die { DIE_LOSS, DIE_DUPLICATE, DIE_CORRUPT };

enum payload { PAYLOAD_ANY, PAYLOAD_SOME, PAYLOAD_NONE };

// A trip: the `nth` frame that matches cuts all cables of the hosts in `victims`.
// Zero in a field that selects frames means that anything matches.
struct wire_trip {
	__u32 nth;	// written by the lab
	__u32 seen;	// frames that matched; the program's
	__u32 victims;	// bit h set: host h is cut; written by the lab, as all that follow
	__u32 swallow;	// the frame itself is lost
	__u16 source;	// ports, host byte order
	__u16 destination;
	__u8 version;	// 4 or 6
	__u8 protocol;	// as in the IP header
	__u8 flags_set;	// of the TCP header
	__u8 flags_clear;
	__u32 payload;	// enum payload
	__u32 pad;
	__u64 at;	// when it tripped, CLOCK_MONOTONIC, ns; zero before; the program's
};

// One direction of one cable. Written by the lab while `on` is zero, except the
// counters, which this program adds to atomically.
struct wire_way_state {
	__u64 dropped; // swallowed by a cut
	__u32 on;      // ON_* bits; the lab writes it last
	__u32 pad;
	__u64 seed;
	__u64 frames;	 // frames that dice were thrown for
	__u64 loss;	 // chances, in units of 2^-32
	__u64 duplicate;
	__u64 corrupt;
	__u64 lost;	 // what befell frames
	__u64 duplicated;
	__u64 corrupted;
	__u64 swallowed; // by a trip
	struct wire_trip trip;
	__u64 room[7];
};

struct wire_host {
	__u32 cut; // bit (link * WIRE_WAYS + way) set: that way is cut; written by lab and trips
	__u32 pad;
	__u64 room[7];
	struct wire_way_state ways[WIRE_LINKS * WIRE_WAYS];
};

// Key: host number. Written and read as said above; lives as long as the lab.
struct wire_host hosts[WIRE_HOSTS];

// Written by trips, read by the lab: host * ways of a host + way, as 8 bytes, meaning
// "look there". A way trips once each time it is armed, so there is room for all.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} tripped SEC(".maps");

// The 64-bit finalizer of SplitMix64: every output bit depends on every input bit.
static __always_inline __u64 mix(__u64 z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

// Whether the `n`-th frame of this way has this die's luck. No generator state that
// two CPUs could race for: the answer depends on seed, frame number and die alone.
static __always_inline int hit(__u64 seed, __u64 n, enum die die, __u64 chance)
{
	return (mix(seed + mix(n * 4 + die)) >> 32) < chance;
}

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

// Fills in what the headers of a frame say. Returns 0 if it is neither TCP nor UDP
// over IPv4 or IPv6 without extension headers; then `version` may still be known.
struct headers {
	__u16 source, destination;
	__u32 payload;
	__u8 version, protocol, flags;
};

static __always_inline int parse(struct __sk_buff *skb, struct headers *h)
{
	__u32 at = sizeof(struct ethhdr), len;
	struct ipv6hdr v6;
	struct tcphdr tcp;
	struct udphdr udp;
	struct iphdr v4;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		h->version = 4;
		if (bpf_skb_load_bytes(skb, at, &v4, sizeof(v4)))
			return 0;
		h->protocol = v4.protocol;
		if (v4.frag_off & bpf_htons(0x1fff)) // a later fragment has no header
			return 0;
		len = bpf_ntohs(v4.tot_len);
		len = (len ?: skb->len - at) - v4.ihl * 4;
		at += v4.ihl * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		h->version = 6;
		if (bpf_skb_load_bytes(skb, at, &v6, sizeof(v6)))
			return 0;
		h->protocol = v6.nexthdr;
		at += sizeof(v6);
		len = bpf_ntohs(v6.payload_len) ?: skb->len - at;
	} else {
		return 0;
	}
	if (h->protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
			return 0;
		h->source = bpf_ntohs(tcp.source);
		h->destination = bpf_ntohs(tcp.dest);
		h->flags = ((__u8 *)&tcp)[13];
		h->payload = len - tcp.doff * 4;
		return 1;
	}
	if (h->protocol == IPPROTO_UDP) {
		if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)))
			return 0;
		h->source = bpf_ntohs(udp.source);
		h->destination = bpf_ntohs(udp.dest);
		h->payload = len - sizeof(udp);
		return 1;
	}
	return 0;
}

static __always_inline int matches(struct __sk_buff *skb, const struct wire_trip *t)
{
	struct headers h = {};
	int known = parse(skb, &h);

	if (t->version && t->version != h.version)
		return 0;
	if (t->protocol && t->protocol != h.protocol)
		return 0;
	if (!(t->source | t->destination | t->flags_set | t->flags_clear | t->payload))
		return 1;
	if (!known)
		return 0;
	if (t->source && t->source != h.source)
		return 0;
	if (t->destination && t->destination != h.destination)
		return 0;
	if ((t->flags_set | t->flags_clear) && h.protocol != IPPROTO_TCP)
		return 0;
	if ((h.flags & t->flags_set) != t->flags_set || (h.flags & t->flags_clear))
		return 0;
	if (t->payload == PAYLOAD_SOME)
		return h.payload != 0;
	return t->payload != PAYLOAD_NONE || h.payload == 0;
}

// The last stage of a way with a trip: this frame does get through, or trips.
static __always_inline int trip(struct __sk_buff *skb, struct wire_way_state *w, __u64 host,
				__u32 slot)
{
	__u64 where = host * WIRE_LINKS * WIRE_WAYS + slot;
	__u32 victims, i;

	if (!matches(skb, &w->trip))
		return TC_ACT_OK;
	if (__sync_fetch_and_add(&w->trip.seen, 1) + 1 != w->trip.nth)
		return TC_ACT_OK;
	victims = w->trip.victims;
	for (i = 0; i < WIRE_HOSTS; i++)
		if (victims & (1U << i))
			__sync_fetch_and_or(&hosts[i].cut, EVERY_CABLE);
	w->trip.at = bpf_ktime_get_ns();
	if (w->trip.swallow)
		count(&w->swallowed);
	bpf_ringbuf_output(&tripped, &where, sizeof(where), 0);
	return w->trip.swallow ? TC_ACT_SHOT : TC_ACT_OK;
}

static __always_inline __u32 detour(__u64 port, enum wire_way way, enum detour which)
{
	return DETOUR_BASE + (port * WIRE_WAYS + way) * DETOURS + which;
}

static __always_inline int cross(struct __sk_buff *skb, enum wire_way way)
{
	__u64 port = skb->ifindex - (__u64)WIRE_PORT_BASE;
	__u32 slot, on, mark = skb->mark;
	struct wire_way_state *w;
	__u64 host, n;

	// Without this the compiler checks a copy, and the verifier loses the bound.
	asm volatile("" : "+r"(port));
	if (port >= WIRE_HOSTS * WIRE_LINKS)
		return TC_ACT_OK;
	host = port / WIRE_LINKS;
	slot = (port % WIRE_LINKS) * WIRE_WAYS + way;
	w = &hosts[host].ways[slot];
	if (mark) // the next cable must not take it for its own
		skb->mark = 0;
	if (*(volatile __u32 *)&hosts[host].cut & (1U << slot)) {
		count(&w->dropped);
		return TC_ACT_SHOT;
	}
	on = *(volatile __u32 *)&w->on;
	if (!on)
		return TC_ACT_OK;
	if ((on & ON_DICE) && mark != MARK_DAMAGED && mark != MARK_DELAYED) {
		n = __sync_fetch_and_add(&w->frames, 1);
		if (hit(w->seed, n, DIE_LOSS, w->loss)) {
			count(&w->lost);
			return TC_ACT_SHOT;
		}
		if (hit(w->seed, n, DIE_DUPLICATE, w->duplicate)) {
			skb->mark = MARK_DAMAGED;
			if (!bpf_clone_redirect(skb, skb->ifindex,
						way == WIRE_FROM_HOST ? BPF_F_INGRESS : 0))
				count(&w->duplicated);
			skb->mark = 0;
		}
		if (hit(w->seed, n, DIE_CORRUPT, w->corrupt)) {
			count(&w->corrupted);
			return bpf_redirect(detour(port, way, DETOUR_CORRUPT), 0);
		}
	}
	if ((on & ON_DELAY) && mark != MARK_DELAYED)
		return bpf_redirect(detour(port, way, DETOUR_DELAY), 0);
	if (on & ON_TRIP)
		return trip(skb, w, host, slot);
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

// On every detour: back to the cable.
SEC("tc")
int back(struct __sk_buff *skb)
{
	__u32 number = skb->ifindex - DETOUR_BASE;
	__u32 way = number / DETOURS % WIRE_WAYS;

	skb->mark = number % DETOURS == DETOUR_DELAY ? MARK_DELAYED : MARK_DAMAGED;
	return bpf_redirect(WIRE_PORT_BASE + number / DETOURS / WIRE_WAYS,
			    way == WIRE_FROM_HOST ? BPF_F_INGRESS : 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
