/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Reading and checking a frame. Headers are copied to the stack: segments may be paged, and a copy
 * of 60 bytes costs less than proving every pointer to the verifier. Where they lie in the linear
 * part, as they nearly always do, the copy needs no call.
 */
#pragma once

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80

#define IPPROTO_ICMPV6 58

#define TCP_OPTIONS_MAX 40

struct ip4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__be32 source;
	__be32 destination;
};

struct ip6_header {
	__be32 version_class_label;
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__u8 source[16];
	__u8 destination[16];
};

struct tcp_header {
	__be16 source;
	__be16 destination;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__be16 checksum;
	__be16 urgent;
};

struct arp_header {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
} __attribute__((packed));

struct packet {
	__u8 source[16];
	__u8 destination[16];
	__u32 ip_offset;
	__u32 l4_offset;
	__u32 l4_length; /* TCP header and payload, by the IP header's own lengths */
	__u32 payload_offset;
	__u32 payload_length;
	__u32 seq;
	__u32 ack;
	__be16 source_port;
	__be16 destination_port;
	__u16 window;
	__u8 flags;
	__u8 options_length;
	__u8 protocol;
	__u8 fragment;
	__u8 ipv6;
};

enum parsed {
	PARSED_TCP,
	PARSED_ICMP,	  /* an ICMP error; addresses are those of the outer header */
	PARSED_OTHER,	  /* nothing for us */
	PARSED_MALFORMED, /* TCP, addresses known, lengths contradict each other */
};

/* Copies a header. False: the frame is too short. */
static __always_inline bool read_header(struct __sk_buff *skb, __u32 offset, void *to,
					const __u32 size)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u64 at = offset;

	/* The verifier must see the bound on the very register that is added. */
	if (!__builtin_constant_p(offset))
		barrier_var(at);
	if (at <= 512 && data + at + size <= end) {
		__builtin_memcpy(to, data + at, size);
		return true;
	}
	/* Without this store some programs trip over the kernel's verifier (docs/kernel-facts.md, "A
	 * precise number in a place that a helper has filled"). */
	__builtin_memset(to, 0, size);
	return !bpf_skb_load_bytes(skb, offset, to, size);
}

static __always_inline void map_ip4(__u8 *out, __be32 address)
{
	__builtin_memset(out, 0, 10);
	out[10] = 0xff;
	out[11] = 0xff;
	__builtin_memcpy(out + 12, &address, 4);
}

static __always_inline enum parsed parse_ip(struct __sk_buff *skb, __u32 offset, struct packet *p)
{
	/* By the IP header's own length. Zero is a super-segment's of 64 KiB or more (BIG TCP); in an
	 * ordinary frame it contradicts itself, and the primary would not take it. */
	__u32 end;

	p->ip_offset = offset;
	p->fragment = 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct ip4_header ip;

		if (!read_header(skb, offset, &ip, sizeof(ip)))
			return PARSED_OTHER;
		if (ip.version_ihl >> 4 != 4 || (ip.version_ihl & 0xf) < 5)
			return PARSED_OTHER;
		map_ip4(p->source, ip.source);
		map_ip4(p->destination, ip.destination);
		p->ipv6 = 0;
		p->protocol = ip.protocol;
		p->fragment = (ip.fragment & bpf_htons(0x3fff)) != 0;
		p->l4_offset = offset + (ip.version_ihl & 0xf) * 4;
		end = offset + bpf_ntohs(ip.length);
		if (!ip.length && skb->gso_size)
			end = skb->len;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ip6_header ip;
		__u8 next;
		int i;

		if (!read_header(skb, offset, &ip, sizeof(ip)))
			return PARSED_OTHER;
		if (bpf_ntohl(ip.version_class_label) >> 28 != 6)
			return PARSED_OTHER;
		__builtin_memcpy(p->source, ip.source, 16);
		__builtin_memcpy(p->destination, ip.destination, 16);
		p->ipv6 = 1;
		p->l4_offset = offset + sizeof(ip);
		end = p->l4_offset + bpf_ntohs(ip.payload_length);
		if (!ip.payload_length && skb->gso_size)
			end = skb->len;
		next = ip.next_header;
		/* Hop-by-hop, routing, destination options, fragment (RFC 8200 §4). */
		for (i = 0; i < 4; i++) {
			__u8 extension[2];

			if (next != 0 && next != 43 && next != 60 && next != 44)
				break;
			if (!read_header(skb, p->l4_offset, extension, 2))
				return PARSED_OTHER;
			if (next == 44) {
				p->fragment = 1;
				p->l4_offset += 8;
			} else {
				p->l4_offset += 8 + extension[1] * 8;
			}
			next = extension[0];
		}
		/* The stack would read on, and might find a segment that was not logged. */
		if (next == 0 || next == 43 || next == 60 || next == 44 || next == 51)
			return PARSED_MALFORMED;
		p->protocol = next;
	} else {
		return PARSED_OTHER;
	}

	if (p->protocol == IPPROTO_ICMP || p->protocol == IPPROTO_ICMPV6)
		return PARSED_ICMP;
	if (p->protocol != IPPROTO_TCP)
		return PARSED_OTHER;
	if (end > skb->len || end < p->l4_offset)
		return PARSED_MALFORMED;
	p->l4_length = end - p->l4_offset;
	return PARSED_TCP;
}

/* The TCP header behind parse_ip(). */
static __always_inline bool parse_tcp(struct __sk_buff *skb, struct packet *p)
{
	struct tcp_header tcp;
	__u32 length;

	if (!read_header(skb, p->l4_offset, &tcp, sizeof(tcp)))
		return false;
	length = (tcp.offset >> 4) * 4;
	if (length < sizeof(tcp) || length > p->l4_length)
		return false;
	p->source_port = tcp.source;
	p->destination_port = tcp.destination;
	p->seq = bpf_ntohl(tcp.seq);
	p->ack = bpf_ntohl(tcp.ack);
	p->window = bpf_ntohs(tcp.window);
	p->flags = tcp.flags;
	p->options_length = length - sizeof(tcp);
	p->payload_offset = p->l4_offset + length;
	p->payload_length = p->l4_length - length;
	return true;
}

struct tcp_options {
	__u32 tsval;
	__u32 tsecr;
	__u16 mss;
	__u8 wscale;
	__u8 present; /* OPT_WSCALE, OPT_SACK, OPT_TSTAMP */
};

struct option_walk {
	struct tcp_options *out;
	__u32 at;
	__u32 length;
	__u8 bytes[TCP_OPTIONS_MAX + 24];
};

/* One option. A bounded loop written out would make the verifier try every list of options there
 * can be; as a callback it is checked once. */
static long walk_option(__u32 index, void *data)
{
	struct option_walk *w = data;
	struct tcp_options *o = w->out;
	__u32 at = w->at;
	__u8 *option, size;

	if (at >= w->length || at >= TCP_OPTIONS_MAX)
		return 1;
	option = &w->bytes[at];
	if (option[0] == 0)
		return 1;
	if (option[0] == 1) {
		w->at = at + 1;
		return 0;
	}
	size = option[1];
	if (size < 2 || at + size > w->length)
		return 1;
	if (option[0] == 2 && size == 4) {
		o->mss = option[2] << 8 | option[3];
	} else if (option[0] == 3 && size == 3) {
		o->wscale = option[2] > 14 ? 14 : option[2];
		o->present |= OPT_WSCALE;
	} else if (option[0] == 4 && size == 2) {
		o->present |= OPT_SACK;
	} else if (option[0] == 8 && size == 10) {
		__be32 word;

		__builtin_memcpy(&word, &option[2], 4);
		o->tsval = bpf_ntohl(word);
		__builtin_memcpy(&word, &option[6], 4);
		o->tsecr = bpf_ntohl(word);
		o->present |= OPT_TSTAMP;
	}
	w->at = at + size;
	return 0;
}

/* RFC 9293 §3.1, RFC 7323, RFC 2018. Malformed options end the list, as they do in the kernel. */
static __noinline int parse_options_at(struct __sk_buff *skb, __u32 offset, __u64 length,
				       struct tcp_options *o)
{
	struct option_walk w = { .out = o, .length = length };

	__builtin_memset(o, 0, sizeof(*o));
	o->mss = 536;
	/* The verifier must see the bounds on the very register that is passed on. */
	barrier_var(length);
	if (length == 0 || length > TCP_OPTIONS_MAX)
		return 0;
	if (bpf_skb_load_bytes(skb, offset, w.bytes, length))
		return 0;
	bpf_loop(TCP_OPTIONS_MAX, walk_option, &w, 0);
	return 0;
}

static __always_inline void parse_options(struct __sk_buff *skb, const struct packet *p,
					  struct tcp_options *o)
{
	parse_options_at(skb, p->l4_offset + sizeof(struct tcp_header), p->options_length, o);
}

/* Timestamps alone, in the layout every common stack uses (RFC 7323 appendix A), else the long
 * way. */
static __always_inline bool parse_timestamps(struct __sk_buff *skb, const struct packet *p,
					     __u32 *tsval, __u32 *tsecr)
{
	struct {
		__be32 head;
		__be32 tsval;
		__be32 tsecr;
	} ts;

	if (p->options_length < sizeof(ts))
		return false;
	if (!read_header(skb, p->l4_offset + sizeof(struct tcp_header), &ts, sizeof(ts)))
		return false;
	if (ts.head == bpf_htonl(0x0101080a)) {
		*tsval = bpf_ntohl(ts.tsval);
		*tsecr = bpf_ntohl(ts.tsecr);
		return true;
	} else {
		struct tcp_options o;

		parse_options(skb, p, &o);
		*tsval = o.tsval;
		*tsecr = o.tsecr;
		return o.present & OPT_TSTAMP;
	}
}

#define CHUNK 512

/* Too large for the stack. Used on ingress only, where programs do not nest. */
struct scratch_space {
	__u64 words[CHUNK / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_space);
} scratch_space SEC(".maps");

struct csum_context {
	struct __sk_buff *skb;
	__u32 offset;
	__u32 left;
	__u32 sum;
	int failed;
};

static long csum_chunk(__u32 index, void *data)
{
	struct csum_context *c = data;
	__u64 n = c->left < CHUNK ? c->left : CHUNK;
	__u32 zero = 0;
	struct scratch_space *scratch = bpf_map_lookup_elem(&scratch_space, &zero);
	__s64 sum;

	barrier_var(n);
	if (!scratch || n == 0 || n > CHUNK)
		return 1;
	/* Zeros behind a short last chunk do not change the sum. */
	if (n < CHUNK)
		__builtin_memset(scratch->words, 0, CHUNK);
	if (bpf_skb_load_bytes(c->skb, c->offset, scratch->words, n)) {
		c->failed = 1;
		return 1;
	}
	sum = bpf_csum_diff(NULL, 0, (__be32 *)scratch->words, CHUNK, c->sum);
	if (sum < 0) {
		c->failed = 1;
		return 1;
	}
	c->sum = sum;
	c->offset += n;
	c->left -= n;
	return 0;
}

/* The pseudo-header's part of a TCP checksum (RFC 9293 §3.1), not folded; negative: an error. For
 * IPv4 the mapped prefix ffff adds 0xffff twice, which is zero in one's complement. */
static __always_inline __s64 pseudo_sum(const struct packet *p, __u32 l4_length)
{
	struct {
		__u8 source[16];
		__u8 destination[16];
		__be32 length;
		__be32 protocol;
	} pseudo;

	__builtin_memcpy(pseudo.source, p->source, 16);
	__builtin_memcpy(pseudo.destination, p->destination, 16);
	pseudo.length = bpf_htonl(l4_length);
	pseudo.protocol = bpf_htonl(IPPROTO_TCP);
	return bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
}

static __always_inline __u16 fold(__s64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Who has computed the TCP checksum, or is to do so: CHECKSUM_*. */
static __always_inline __u8 summed_by(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed);
}

/*
 * Would the stack accept this segment's checksum? Hardware or GRO may have verified it already, a
 * virtual device may never have computed it; else it is summed here, since what is logged must be
 * what the primary accepts.
 */
static __always_inline bool checksum_good(struct __sk_buff *skb, const struct packet *p)
{
	__u8 summed = summed_by(skb);
	struct csum_context c = {
		.skb = skb,
		.offset = p->l4_offset,
		.left = p->l4_length,
	};
	__s64 sum;

	if (summed == CHECKSUM_UNNECESSARY || summed == CHECKSUM_PARTIAL)
		return true;

	sum = pseudo_sum(p, p->l4_length);
	if (sum < 0)
		return false;
	c.sum = sum;
	bpf_loop(1 + 65536 / CHUNK, csum_chunk, &c, 0);
	if (c.failed || c.left)
		return false;
	return fold(c.sum) == 0xffff;
}

static __always_inline struct service *service_of(const __u8 *address, __be16 port)
{
	struct service_key key = { .port = port };

	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&services, &key);
}

static __always_inline bool is_service_address(const __u8 *address)
{
	struct address_key key;

	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&addresses, &key) != NULL;
}

/* Key of the flow that a segment from (or to) a client belongs to. */
static __always_inline void key_inbound(const struct packet *p, struct flow_key *key)
{
	__builtin_memcpy(key->client, p->source, 16);
	__builtin_memcpy(key->server, p->destination, 16);
	key->client_port = p->source_port;
	key->server_port = p->destination_port;
}

static __always_inline void key_outbound(const struct packet *p, struct flow_key *key)
{
	__builtin_memcpy(key->client, p->destination, 16);
	__builtin_memcpy(key->server, p->source, 16);
	key->client_port = p->destination_port;
	key->server_port = p->source_port;
}

/* The local socket that a client's segment is for, to be released: the connection's, else the
 * listener. */
static __always_inline struct bpf_sock *local_socket(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size;

	if (p->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, p->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, p->destination, 16);
		tuple.ipv6.sport = p->source_port;
		tuple.ipv6.dport = p->destination_port;
		size = sizeof(tuple.ipv6);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, p->source + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, p->destination + 12, 4);
		tuple.ipv4.sport = p->source_port;
		tuple.ipv4.dport = p->destination_port;
		size = sizeof(tuple.ipv4);
	}
	return bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}
