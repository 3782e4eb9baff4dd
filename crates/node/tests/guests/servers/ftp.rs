//! vsftpd: a process for each client, and one with all rights that it asks for favours; a connection for each
//! file.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use demo::site::Site;
use nix::sys::signal::Signal::SIGTERM;
use nix::unistd::{User, chown};

use super::{End, Place, Server, large, words};
use crate::guests::serving::{PORTS, at_once, listens, printed};

/// Clients' processes have what the listening one has.
pub fn vsftpd(place: &Place) -> Server {
    set_up(place, "NO")
}

/// Clients' processes have no network and no other processes to look at.
pub fn vsftpd_isolated(place: &Place) -> Server {
    set_up(place, "YES")
}

fn set_up(place: &Place, isolated: &str) -> Server {
    // Whose files these are: a user without rights, whose home is there.
    let user = User::from_name("daemon").ok().flatten().expect("every system has a daemon");
    let (site, at) = (place.site(), place.at);
    let uploads = place.work().join("uploads");
    fs::create_dir(&uploads).expect("a folder");
    chown(&uploads, Some(user.uid), Some(user.gid)).expect("its owner");
    fs::create_dir(place.work().join("empty")).expect("a folder");
    place.file(Site::LARGE.trim_start_matches('/'), large(&site));
    // Its seccomp sandbox kills it on its own as well: it knows fewer calls than libc makes today.
    let config = format!(
        "listen=YES\nbackground=NO\nlisten_address={ip}\nlisten_port={port}\n\
         pasv_min_port={first}\npasv_max_port={last}\n\
         seccomp_sandbox=NO\nisolate={isolated}\nisolate_network={isolated}\n\
         secure_chroot_dir={dir}/empty\nxferlog_enable=YES\nvsftpd_log_file={dir}/log\n\
         anonymous_enable=YES\nftp_username=daemon\nanon_root={dir}\nno_anon_password=YES\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_other_write_enable=YES\nanon_umask=022\n",
        ip = at.ip(),
        port = at.port(),
        first = at.port() + 1,
        last = at.port() + PORTS - 1,
        dir = place.work().display(),
    );
    let config = place.file("vsftpd.conf", config);
    let file = large(&site);
    let serves = move || {
        at_once(|client| {
            assert!(get(at, Site::LARGE) == file, "it sends something else");
            let name = format!("/uploads/{client}");
            put(at, &name);
            assert!(get(at, &name) == include_bytes!("ftp.rs"), "it has kept something else");
        });
    };
    Server {
        command: words("vsftpd", "vsftpd", &[&config]),
        answers: Box::new(move || listens(at)),
        serves: Box::new(serves),
        end: End::by(SIGTERM),
    }
}

fn get(at: SocketAddr, path: &str) -> Vec<u8> {
    printed(Command::new("curl").arg("-sS").arg(format!("ftp://{at}{path}")))
}

/// This file.
fn put(at: SocketAddr, path: &str) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/servers/ftp.rs");
    printed(Command::new("curl").args(["-sS", "-T", file]).arg(format!("ftp://{at}{path}")));
}
