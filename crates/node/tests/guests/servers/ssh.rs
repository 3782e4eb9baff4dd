//! sshd: executes itself again for each client, has a process with fewer rights talk with it, and starts a
//! shell.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal::SIGTERM;
use nix::unistd::{User, getuid};

use super::{End, Place, Server, words};
use crate::guests::serving::{at_once, listens, printed};

pub fn sshd(place: &Place) -> Server {
    let (at, dir) = (place.at, place.work().display().to_string());
    // What it was compiled to lock its processes into. It is empty, and a package would make it.
    fs::create_dir_all("/run/sshd").expect("the folder that sshd asks for");
    let clients = place.folder("clients");
    let (host, key) = (place.work().join("host"), clients.join("key"));
    make_key(&host);
    make_key(&key);
    fs::copy(clients.join("key.pub"), place.work().join("authorized")).expect("a file");
    place.file("words", "these words\n");
    // The folder is in one that all may write to. What the user's shell would begin with is not the test's.
    let config = format!(
        "Port {port}\nListenAddress {ip}\nHostKey {dir}/host\nPidFile {dir}/pid\nUsePAM no\n\
         AuthorizedKeysFile {dir}/authorized\nStrictModes no\nPermitUserRC no\nSetEnv HOME={dir}\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxStartups 100\n",
        port = at.port(),
        ip = at.ip(),
    );
    let config = place.file("sshd.conf", config);
    let serves = move || {
        at_once(|client| {
            let command =
                format!("cat {dir}/words; for i in 1 2 3; do echo {client} $i | cat; done");
            let expected = format!("these words\n{client} 1\n{client} 2\n{client} 3\n");
            assert_eq!(ssh(at, &key, &command), expected);
        });
    };
    Server {
        command: words("sshd", "openssh-server", &["-D", "-e", "-f", &config]),
        answers: Box::new(move || listens(at)),
        serves: Box::new(serves),
        end: End::with(SIGTERM, 0),
    }
}

fn make_key(path: &Path) {
    printed(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path));
}

fn ssh(at: SocketAddr, key: &Path, command: &str) -> String {
    let user = User::from_uid(getuid()).ok().flatten().expect("who runs the tests has a name");
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-p", &at.port().to_string(), "-i"]).arg(key);
    for option in ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"] {
        ssh.args(["-o", option]);
    }
    ssh.arg(format!("{}@{}", user.name, at.ip())).arg(command);
    String::from_utf8(printed(&mut ssh)).expect("text")
}
