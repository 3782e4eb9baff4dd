/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the daemon decides about a flow. It is written into the entry where it lies, and only what is
 * the daemon's to decide: meanwhile the data path follows the client in the same entry, on other
 * processors. If the entry were replaced, what they write would be lost, or end up in whichever flow
 * gets the old one's memory.
 */
#pragma once

/* 1: done. 0: there is no such flow any more. */
SEC("syscall")
int change_flow(struct flow_change *change)
{
	struct flow_key key = change->key;
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);

	if (!flow || flow->irs != change->flow.irs)
		return 0;
	if (change->flow.state == FLOW_ADOPTING || change->flow.state == FLOW_DELIVERING) {
		flow->birth_seq = change->flow.birth_seq;
		flow->birth_ack = change->flow.birth_ack;
		flow->child_ack = change->flow.child_ack;
		flow->child_edge = change->flow.child_edge;
		flow->snd_max = change->flow.snd_max;
		flow->child_nxt = change->flow.child_nxt;
		flow->replay_end = change->flow.replay_end;
		flow->swallow = change->flow.swallow;
		/* One that has delivered is closed already: without a child segments are kept from the
		 * stack in either state. */
		flow->child = CHILD_NONE;
		barrier();
	}
	flow->state = change->flow.state;
	return 1;
}
