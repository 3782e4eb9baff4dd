//! smbd: a process for each client; they share memory with locks in it, and send each other messages.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use demo::site::Site;

use super::{End, Place, Server, large, words};
use crate::guests::serving::{at_once, listens, printed};

pub fn smbd(place: &Place) -> Server {
    let (site, at) = (place.site(), place.at);
    let share = place.work().join("share");
    fs::create_dir(&share).expect("a folder");
    fs::set_permissions(&share, fs::Permissions::from_mode(0o777)).expect("its mode");
    let file = large(&site);
    fs::write(share.join("large.bin"), &file).expect("a file");
    let config = format!(
        "[global]\nsmb ports = {port}\ninterfaces = {ip}\nbind interfaces only = yes\n\
         server role = standalone server\nmap to guest = bad user\nguest account = nobody\n\
         disable netbios = yes\ndisable spoolss = yes\nload printers = no\n\
         rpc start on demand helpers = no\nlog file = {dir}/log\nusershare path =\n{folders}\
         [share]\npath = {dir}/share\nguest ok = yes\nread only = no\n",
        port = at.port(),
        ip = at.ip(),
        dir = place.work().display(),
        folders = folders(&place.work()),
    );
    let config = place.file("smb.conf", config);
    let clients = place.folder("clients");
    fs::write(clients.join("smb.conf"), format!("[global]\n{}", folders(&clients)))
        .expect("a file");
    let serves = move || {
        at_once(|client| {
            let name = format!("{client}{}", Site::LARGE.replace('/', "-"));
            smbclient(at, &clients, &format!("get large.bin {name}; put {name} {name}"));
            assert!(fs::read(clients.join(&name)).expect("a file") == file, "it sends other bytes");
            assert!(fs::read(share.join(&name)).expect("a file") == file, "it keeps other bytes");
        });
    };
    Server {
        command: words("smbd", "samba", &["--foreground", "--no-process-group", "-s", &config]),
        answers: Box::new(move || listens(at)),
        serves: Box::new(serves),
        // Its way to end is to kill its whole group, and itself first: how far that came is not recorded.
        end: End::killed(),
    }
}

/// All the places where it would look for, and leave, something.
fn folders(below: &Path) -> String {
    let line = |kind: &str| {
        let path = below.join(kind.replace(' ', "-"));
        fs::create_dir(&path).expect("a folder");
        format!("{kind} = {}\n", path.display())
    };
    let kinds = ["lock directory", "state directory", "cache directory", "pid directory"];
    kinds.into_iter().chain(["private dir", "ncalrpc dir"]).map(line).collect()
}

fn smbclient(at: SocketAddr, clients: &Path, commands: &str) {
    let mut smbclient = Command::new("smbclient");
    smbclient.arg(format!("//{}/share", at.ip())).args(["-N", "-p", &at.port().to_string()]);
    smbclient.arg("-s").arg(clients.join("smb.conf")).args(["-c"]);
    printed(smbclient.arg(format!("lcd {}; {commands}", clients.display())));
}
