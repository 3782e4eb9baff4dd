// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The gate: what a server writes is captured, and leaves when the daemon says so.
 *
 *   sock_moves  sockops               a connection gets its gate; shutdown, close, end
 *   capture     sk_msg                every write, copied to the daemon before TCP gets it
 *   gate_out    cgroup_skb egress     TCP may send what is released, and keeps the rest
 *   gate_fence  tc egress, service    the same verdict, when the daemon is dead
 *   order_in    tc ingress, a TUN     the daemon's orders: release, open
 */
#include <stdbool.h>
#include <stddef.h>

#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"
#include "intf.h"
#include "maps.h"
#include "capture.h"
#include "verdict.h"
#include "orders.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
