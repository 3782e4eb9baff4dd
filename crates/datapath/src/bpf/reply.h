/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Is a segment a whole reply? Sure is only a head with exactly one Content-Length, all digits, and what
 * follows it; all else is left to the backup's daemon, which understands HTTP (RFC 9112). A mistake here
 * lets a part of a reply go that is logged, and is one that the daemon finds.
 */
#pragma once

#define REPLY_MIN 16
#define REPLY_ROOM 2048 /* a power of two above REPLY_MAX */

/* The payload that is being read; what is behind it is of no meaning, and may be read as well. */
struct reply_room {
	union {
		__u8 bytes[REPLY_ROOM + 16];
		__u64 words[REPLY_ROOM / 8 + 2];
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reply_room);
} reply_room SEC(".maps");

enum reply {
	REPLY_UNCLEAR,
	REPLY_BEGUN, /* its head is whole, and says that there is more to come */
	REPLY_WHOLE,
};

struct head {
	const struct reply_room *room;
	__u32 length; /* of what is there */
	__u32 line;   /* where the line begins that is being read */
	__u32 value;  /* where the announced length begins */
	__u32 stop;   /* and where its line ends */
	__u32 body;   /* as announced, in bytes */
	__u32 end;    /* of the head; 0: not seen yet */
	__u8 digits;
	__u8 lines; /* how many announce a length */
	__u8 doubt;
};

/* Six digits are more than a packet holds, and some spaces may be in front of them. */
#define DIGITS_MAX 6
#define VALUE_MAX 16

static long read_value(__u32 index, void *data)
{
	struct head *head = data;
	__u32 at = head->value + index;
	__u8 c = head->room->bytes[at & (REPLY_ROOM - 1)];

	if (at >= head->stop)
		return 1;
	if (c >= '0' && c <= '9' && head->digits < DIGITS_MAX) {
		head->body = head->body * 10 + (c - '0');
		head->digits++;
	} else if (c != ' ' || head->digits) {
		head->doubt = 1;
	}
	return 0;
}

/* Eight characters in the order in which they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie");
#define WORD(a, b, c, d, e, f, g, h)                                                            \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 | \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)
#define EACH(c) ((c) * 0x0101010101010101ull)

/* "Content-Length:", in which letters are of either case. */
#define NAME_LENGTH 15
static __always_inline bool announces_length(__u64 first, __u64 second)
{
	first |= WORD(32, 32, 32, 32, 32, 32, 32, 0);
	second |= WORD(32, 32, 32, 32, 32, 32, 0, 0);
	return first == WORD('c', 'o', 'n', 't', 'e', 'n', 't', '-') &&
	       second << 8 == WORD(0, 'l', 'e', 'n', 'g', 't', 'h', ':');
}

/* A line ends with the character in front of `end`. True: it was the head's last one. */
static __noinline bool read_line(struct head *head, __u32 end)
{
	const struct reply_room *room = head->room;
	__u32 line = head->line;
	const __u8 *text = room->bytes + (line & (REPLY_ROOM - 1));

	head->line = end;
	end--;
	if (end > line && room->bytes[(end - 1) & (REPLY_ROOM - 1)] == '\r')
		end--;
	if (end == line) {
		head->end = head->line;
		return true;
	}
	/* A line that was folded: obsolete, and not worth understanding. */
	if (text[0] == ' ' || text[0] == '\t')
		head->doubt = 1;
	if (end - line >= NAME_LENGTH &&
	    announces_length(*(const __u64 *)text, *(const __u64 *)(text + 8))) {
		head->value = line + NAME_LENGTH;
		head->stop = end;
		head->lines++;
		if (end - head->value > VALUE_MAX)
			head->doubt = 1;
		bpf_loop(VALUE_MAX, read_value, head, 0);
	}
	return false;
}

/* Most words have no end of a line in them. */
static long read_word(__u32 index, void *data)
{
	struct head *head = data;
	__u64 word = head->room->words[index & (REPLY_ROOM / 8 - 1)] ^ EACH('\n');
	/* The highest bit of each byte that is 0. */
	__u64 ends = ~(((word & EACH(0x7f)) + EACH(0x7f)) | word | EACH(0x7f));
	__u32 at = index * 8;

	for (; ends; ends >>= 8) {
		at++;
		if (!(ends & 0x80))
			continue;
		if (at > head->length || read_line(head, at))
			return 1;
	}
	return 0;
}

static __always_inline enum reply read_reply(struct __sk_buff *skb, const struct packet *p)
{
	__u32 only = 0, length = p->payload_length, last = length - 1;
	struct reply_room *room = bpf_map_lookup_elem(&reply_room, &only);
	struct head head = { .room = room, .length = length };
	__u8 *text;

	if (!room || length < REPLY_MIN || length > REPLY_MAX)
		return REPLY_UNCLEAR;
	/* For the verifier, which has lost sight of the bounds. */
	asm volatile("%0 &= 0x7ff" : "+r"(last));
	if (bpf_skb_load_bytes(skb, p->payload_offset, room->bytes, last + 1))
		return REPLY_UNCLEAR;
	text = room->bytes;
	/* A final reply: what is interim is followed by another one. */
	if (text[0] != 'H' || text[1] != 'T' || text[2] != 'T' || text[3] != 'P' || text[4] != '/' ||
	    text[5] != '1' || text[6] != '.' || text[8] != ' ' || text[9] < '2' || text[9] > '5')
		return REPLY_UNCLEAR;
	bpf_loop((length + 7) / 8, read_word, &head, 0);
	if (!head.end || head.lines != 1 || !head.digits || head.doubt)
		return REPLY_UNCLEAR;
	if (head.end + head.body == length)
		return REPLY_WHOLE;
	return head.end + head.body > length ? REPLY_BEGUN : REPLY_UNCLEAR;
}
