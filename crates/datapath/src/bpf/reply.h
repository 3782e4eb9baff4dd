/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Is a segment a whole reply? Sure is only a head with exactly one Content-Length, all digits, and what
 * follows it; all else is left to the backup's daemon, which understands HTTP (RFC 9112). A mistake here
 * lets a part of a reply go that is logged, and is one that the daemon finds.
 */
#pragma once

#define REPLY_MIN 16
#define REPLY_ROOM 2048 /* a power of two above REPLY_MAX */

/* The payload that is being read. */
struct reply_room {
	__u8 bytes[REPLY_ROOM];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reply_room);
} reply_room SEC(".maps");

const char content_length[] = "content-length:";
#define CONTENT_LENGTH (sizeof(content_length) - 1)

enum reply {
	REPLY_UNCLEAR,
	REPLY_BEGUN, /* its head is whole, and says that there is more to come */
	REPLY_WHOLE,
};

struct head {
	const struct reply_room *room;
	__u32 column; /* characters since the line began */
	__u32 body;   /* as announced, in bytes */
	__u32 end;    /* of the head; 0: not seen yet */
	__u8 fits;    /* the line may still be the one */
	__u8 digits;  /* its value is being read; counts, not beyond 7 */
	__u8 lines;   /* how many such lines there are */
	__u8 doubt;
};

static long read_head(__u32 index, void *data)
{
	struct head *head = data;
	__u8 c = head->room->bytes[index & (REPLY_ROOM - 1)];

	if (c == '\n') {
		if (head->digits == 1)
			head->doubt = 1;
		if (!head->column) {
			head->end = index + 1;
			return 1;
		}
		head->column = 0;
		head->fits = 1;
		head->digits = 0;
		return 0;
	}
	if (c == '\r')
		return 0;
	if (head->digits) {
		if (c >= '0' && c <= '9' && head->digits < 7) {
			head->body = head->body * 10 + (c - '0');
			head->digits++;
		} else if (c != ' ' || head->digits > 1) {
			head->doubt = 1;
		}
	} else if (head->fits && head->column < CONTENT_LENGTH) {
		if ((c >= 'A' && c <= 'Z' ? c | 0x20 : c) != content_length[head->column & 15])
			head->fits = 0;
		else if (head->column == CONTENT_LENGTH - 1) {
			head->digits = 1;
			head->lines++;
		}
	} else if (!head->column && (c == ' ' || c == '\t')) {
		/* A line that was folded: obsolete, and not worth understanding. */
		head->doubt = 1;
	}
	head->column++;
	return 0;
}

static __always_inline enum reply read_reply(struct __sk_buff *skb, const struct packet *p)
{
	__u32 only = 0, length = p->payload_length, last = length - 1;
	struct reply_room *room = bpf_map_lookup_elem(&reply_room, &only);
	struct head head = { .room = room, .fits = 1 };
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
	bpf_loop(length, read_head, &head, 0);
	if (!head.end || head.lines != 1 || head.doubt)
		return REPLY_UNCLEAR;
	if (head.end + head.body == length)
		return REPLY_WHOLE;
	return head.end + head.body > length ? REPLY_BEGUN : REPLY_UNCLEAR;
}
