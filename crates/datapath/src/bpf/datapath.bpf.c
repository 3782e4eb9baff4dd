// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Steadfast's data path: one object, so that all hooks share one set of maps.
 *
 *   service_in   tc ingress, service link   clients' segments: log and relay, hold, or serve
 *   cluster_in   tc ingress, cluster link   relayed segments; the primary's control segments
 *   node_out     tc egress, both links      fence, bounce of control segments, silence of children
 *   adopt_in     tc ingress, adoption TUN   forged ACKs become children of the listener, or of the
 *                                           daemon's; orders
 *   sock_events  sockops                    a connection begins: gate, swallowing, or open; its end
 *   server_write sk_msg                     output the client already has ends here; held output
 *                                           is captured
 *   server_read  tp tcp_rcv_space_adjust    a server left bytes of a held flow unread
 *   gate_out     cgroup_skb egress          TCP may send what is released, and keeps the rest
 *   server_close cgroup sock_release        a server that dies by a signal fences its node (C4)
 *   change_flow  syscall                    the daemon moves a flow to another state
 *   ring         iter tcp                   servers that were told of no bytes look again
 *   list_gates   iter tcp                   the daemon asks whose output may be held
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
#include "packet.h"
#include "log.h"
#include "flow.h"
#include "reply.h"
#include "gate.h"
#include "order.h"
#include "greet.h"
#include "ingress.h"
#include "egress.h"
#include "adopt.h"
#include "server.h"
#include "change.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
