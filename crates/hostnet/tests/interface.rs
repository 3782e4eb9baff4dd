//! Interfaces, addresses, sysctls: what is read back is what `ip` says.

mod common;

use std::net::IpAddr;

use common::{Namespace, joined};
use hostnet::sysctl::{self, RpFilter};
use hostnet::{AddressError, Assigned, Interface, InterfaceError, Mac, ServiceAddress};

const VIP4: &str = "192.0.2.80";
const VIP6: &str = "2001:db8::80";

fn vip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_interface_is_described() {
    let (a, _b) = joined();
    a.ip("link set eth0 address 02:00:00:00:00:0a mtu 1400");
    a.ip("address add 192.0.2.1/24 dev eth0");
    let eth0 = a.run(|| Interface::by_name("eth0").unwrap());
    assert_eq!(eth0.mac, Some(Mac([2, 0, 0, 0, 0, 0xa])));
    assert_eq!(eth0.mtu, 1400);
    assert!(eth0.up && eth0.carrier);
    let expected = Assigned { addr: vip("192.0.2.1"), prefix_len: 24 };
    assert!(eth0.addresses.contains(&expected), "{:?}", eth0.addresses);
    assert!(a.ip("link show eth0").starts_with(&format!("{}: eth0", eth0.index)));
}

#[test]
fn carrier_and_up_are_told_apart() {
    let (a, b) = joined();
    let look = || a.run(|| Interface::by_name("eth0").unwrap());
    b.ip("link set eth0 down");
    common::until("carrier is lost", || !look().carrier);
    assert!(look().up);
    a.ip("link set eth0 down");
    assert!(!look().up);
}

#[test]
fn a_missing_interface_is_named() {
    let a = Namespace::new();
    for name in ["eth9", "", "a-name-far-too-long-for-the-kernel"] {
        let error = a.run(|| Interface::by_name(name).unwrap_err());
        assert!(matches!(&error, InterfaceError::Missing { name: n } if n == name), "{error}");
    }
    let lo = a.run(|| Interface::by_name("lo").unwrap());
    assert!(lo.ethernet().unwrap_err().to_string().contains("lo is not an Ethernet device"));
}

#[test]
fn the_service_address_comes_and_goes() {
    let a = Namespace::new();
    for text in [VIP4, VIP6] {
        let show = || a.ip(&format!("-o address show to {text}"));
        let guard = a.run(|| ServiceAddress::install(vip(text)).unwrap());
        assert!(guard.is_ours());
        let line = show();
        assert!(line.contains(": lo ") && !line.contains("tentative"), "{line}");
        assert!(line.contains("/32") || line.contains("/128"), "{line}");
        drop(guard);
        assert_eq!(show(), "");
    }
}

#[test]
fn an_address_of_the_administrator_stays() {
    let a = Namespace::new();
    for (text, bits) in [(VIP4, 32), (VIP6, 128)] {
        a.ip(&format!("address add {text}/{bits} dev lo"));
        let guard = a.run(|| ServiceAddress::install(vip(text)).unwrap());
        assert!(!guard.is_ours());
        guard.remove().unwrap();
        assert!(a.ip(&format!("-o address show to {text}")).contains(": lo "));
    }
}

/// A killed daemon runs no destructor; the next one takes the address over and cleans up.
#[test]
fn an_address_left_by_a_killed_node_is_ours_again() {
    let a = Namespace::new();
    for text in [VIP4, VIP6] {
        std::mem::forget(a.run(|| ServiceAddress::install(vip(text)).unwrap()));
        let guard = a.run(|| ServiceAddress::install(vip(text)).unwrap());
        assert!(guard.is_ours());
        guard.remove().unwrap();
        assert_eq!(a.ip(&format!("-o address show to {text}")), "");
    }
}

#[test]
fn an_address_on_another_interface_is_an_error_that_names_it() {
    let (a, _b) = joined();
    for (text, bits) in [(VIP4, 24), (VIP6, 64)] {
        a.ip(&format!("address add {text}/{bits} dev eth0"));
        let error = a.run(|| ServiceAddress::install(vip(text)).unwrap_err());
        assert!(matches!(error, AddressError::Elsewhere { .. }));
        let remedy = format!("`ip address del {text}/{bits} dev eth0`");
        assert!(error.to_string().contains(&remedy), "{error}");
    }
}

#[test]
fn loopback_down_and_useless_addresses_are_errors() {
    let a = Namespace::new();
    for text in ["0.0.0.0", "ff02::1"] {
        let error = a.run(|| ServiceAddress::install(vip(text)).unwrap_err());
        assert!(matches!(error, AddressError::Unusable { .. }), "{error}");
    }
    a.ip("link set lo down");
    let error = a.run(|| ServiceAddress::install(vip(VIP4)).unwrap_err());
    assert!(matches!(error, AddressError::LoopbackDown { .. }), "{error}");
}

#[test]
fn ipv6_disabled_is_said_to_be_so() {
    let a = Namespace::new();
    a.write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1");
    let error = a.run(|| ServiceAddress::install(vip(VIP6)).unwrap_err());
    assert!(matches!(error, AddressError::NoIpv6 { .. }), "{error}");
}

/// The kernel's rule (IN_DEV_MAXCONF): the stricter number wins, and 2 (loose) beats 1.
#[test]
fn the_larger_rp_filter_counts() {
    let (a, _b) = joined();
    let cases = [
        (0, 0, RpFilter::Off),
        (0, 1, RpFilter::Strict),
        (1, 0, RpFilter::Strict),
        (1, 2, RpFilter::Loose),
    ];
    for (all, own, expected) in cases {
        a.run(|| {
            sysctl::write_conf("ipv4", "all", "rp_filter", all).unwrap();
            sysctl::write_conf("ipv4", "eth0", "rp_filter", own).unwrap();
            assert_eq!(sysctl::effective_rp_filter("eth0").unwrap(), expected, "{all} {own}");
        });
    }
    let error = a.run(|| sysctl::effective_rp_filter("eth9").unwrap_err());
    assert!(error.to_string().contains("/proc/sys/net/ipv4/conf/eth9/rp_filter"), "{error}");
}
