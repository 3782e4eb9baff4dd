//! scratch: fixed roles
use std::time::{Duration, Instant};
use std::net::IpAddr;
use std::cell::RefCell; use std::rc::Rc;
use datapath::*;
fn mac(name:&str)->[u8;6]{ let s=std::fs::read_to_string(format!("/sys/class/net/{name}/address")).unwrap(); let mut m=[0;6]; for (i,p) in s.trim().split(':').enumerate(){m[i]=u8::from_str_radix(p,16).unwrap();} m}
fn pmac(s:&str)->[u8;6]{ let mut m=[0;6]; for (i,p) in s.trim().split(':').enumerate(){m[i]=u8::from_str_radix(p,16).unwrap();} m}
fn main(){
    let a:Vec<String>=std::env::args().collect();
    let role=&a[1]; let vips:Vec<IpAddr>=a[2].split(',').map(|v|v.parse().unwrap()).collect(); let peer_svc=pmac(&a[3]); let peer_clu=pmac(&a[4]); let own:std::net::Ipv4Addr=a[5].parse().unwrap();
    let svc=hostnet::Interface::by_name("svc0").unwrap(); let clu=hostnet::Interface::by_name("clu0").unwrap();
    let _addrs:Vec<_>=vips.iter().map(|v|hostnet::ServiceAddress::install(*v).unwrap()).collect();
    let mut dp=Datapath::load(&Settings{service_ifindex:svc.index,cluster_ifindex:clu.index,own_address4:Some(own),ring_bytes:64<<20,max_flows:65536,services:vec![vips.iter().map(|v|(*v,80)).collect()]}).unwrap();
    let tun=hostnet::Tun::open("sfadopt",65535,hostnet::Offload::None).unwrap();
    dp.attach_adoption(tun.ifindex()).unwrap();
    let sb=dp.switchboard();
    let eng=takeover::Engine::new(dp.flow_table().unwrap(),tun,takeover::Budgets{total:2<<30,per_flow:vec![1<<30]}).unwrap();
    let eng=Rc::new(RefCell::new(eng)); let e2=eng.clone();
    let log=dp.log_reader(move |r,p| e2.borrow_mut().on_record(r,p,Instant::now())).unwrap();
    let far=hostnet::now_boottime_ns()+3600_000_000_000;
    sb.set_lease(far); sb.set_journal_alive(far);
    sb.set_relay(clu.index, mac("clu0"), peer_clu); sb.set_peer_macs(peer_svc,peer_clu);
    let holding = if role=="backup" { sb.set_role(1,Role::Backup); true } else { sb.set_role(1,Role::Primary{duplex:true}); false };
    sb.set_holding(holding);
    let h=hostnet::Holding::default(); let _=&h;
    eprintln!("{role} ready");
    let c=dp.counters().unwrap();
    let mut promoted=false; let trig=format!("/tmp/promote-{role}");
    let mut last=Instant::now();
    loop{
        log.wait(Duration::from_millis(if promoted {2} else {10})).unwrap();
        if !promoted && std::path::Path::new(&trig).exists(){ promoted=true; sb.set_role(2,Role::Primary{duplex:false}); log.drain().unwrap(); let t=Instant::now(); eng.borrow_mut().promote(t); eprintln!("promote took {:?}",t.elapsed()); }
        eng.borrow_mut().advance(Instant::now());
        for n in eng.borrow_mut().take_notices(){ eprintln!("{role}: {n:?}"); }
        if last.elapsed()>Duration::from_secs(2){ last=Instant::now(); let s:Vec<String>=c.all().filter(|(_,v)|*v>0).map(|(n,v)|format!("{n}={v}")).collect(); eprintln!("{role}: {} | {:?}",s.join(" "), eng.borrow().progress()); }
    }
}
