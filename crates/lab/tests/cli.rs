//! Labs from a shell: the commands, the background keeper, and what is left when it dies.

mod common;

use std::{
    fs,
    io::Write,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;

use common::{eventually, measure};

const PATIENCE: Duration = Duration::from_secs(5);

/// A shell with a lab directory of its own, so that "the only running lab" is ours.
struct Shell {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Shell {
    fn new() -> Shell {
        let test = std::env::current_exe().unwrap();
        let program = test.parent().unwrap().parent().unwrap().join("examples/lab");
        assert!(program.exists(), "build it first: cargo build -p lab --examples");
        Shell { dir: tempfile::tempdir().unwrap(), program }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(line.split_whitespace()).env("STEADFAST_LAB_DIR", self.dir.path());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn ok(&self, line: &str) -> String {
        let out = self.run(line);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        assert!(out.status.success(), "{line}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    }

    fn error(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(!out.status.success(), "{line} succeeded");
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.ok("status --json")).unwrap()
    }

    fn link(&self, name: &str) -> Value {
        let status = self.status();
        let links = status["links"].as_array().unwrap();
        links.iter().find(|l| l["name"] == name).unwrap().clone()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                self.run(&format!("down --name {}", entry.file_name().to_string_lossy()));
            }
        }
    }
}

#[test]
fn exec_passes_status_and_streams() {
    let shell = Shell::new();
    let said = shell.ok("up");
    assert!(said.contains("lab lab1 is up") && said.contains("10.77.0.101"), "{said}");
    assert_eq!(shell.ok("exec a -- cat /proc/sys/kernel/hostname"), "a\n");
    let status = |script: &str| {
        let mut command = shell.command("exec b --");
        command.args(["sh", "-c", script]).status().unwrap().code()
    };
    assert_eq!(status("exit 42"), Some(42));
    assert_eq!(status("kill -SEGV $$"), Some(128 + libc::SIGSEGV));
    let mut cat = shell.command("exec client -- cat");
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through");
    assert!(shell.error("exec c -- true").contains("its hosts are client, a, b"));
    assert!(shell.error("exec a -- /no/such").contains("/no/such"));

    // Ending `exec` ends what it runs.
    let mut exec = shell.command("exec a -- sleep 600").spawn().unwrap();
    let sleeps = || shell.status()["hosts"][1]["processes"] == 1;
    eventually(PATIENCE, "sleep runs", sleeps);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(exec.id() as i32), nix::sys::signal::SIGTERM)
        .unwrap();
    assert_eq!(exec.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    assert!(!sleeps());
    assert_eq!(shell.ok("down"), "lab lab1 is down\n");
    assert_eq!(fs::read_dir(shell.dir.path()).unwrap().count(), 1, "only .lock is left");
}

#[test]
fn faults_from_a_shell() {
    let shell = Shell::new();
    shell.ok("up --name faults --rate 100");
    shell.ok("cut a.svc --only from-host");
    assert_eq!(shell.link("a.svc")["cut_from_host"], true);
    assert_eq!(shell.link("a.svc")["cut_to_host"], false);
    shell.ok("heal a.svc");
    shell.ok("cut cluster --carrier");
    for link in ["a.clu", "b.clu"] {
        let link = shell.link(link);
        assert!(link["cut_from_host"] == true && link["no_carrier"] == true, "{link}");
    }
    assert!(shell.ok("status").contains("no carrier"));
    shell.ok("heal cluster");
    assert_eq!(shell.link("a.clu")["no_carrier"], false);
    assert!(shell.error("cut d.svc").contains("a.svc"));

    shell.ok("kill a --how hang --for 60");
    assert_eq!(shell.status()["hosts"][1]["hung"], true);
    assert!(shell.error("exec a -- true").contains("hangs"));
    shell.ok("resume a");
    shell.ok("exec a -- true");
    assert!(shell.error("kill a --how process").contains("no process of host a"));
    assert!(shell.error("kill a --how daemon").contains("no process of host a"));
    shell.ok("kill a");
    assert_eq!(shell.status()["hosts"][1]["up"], false);
    assert!(shell.error("kill a").contains("boot it first"));
    assert!(shell.error("exec a -- true").contains("boot it first"));
    shell.ok("boot a");
    shell.ok("exec a -- true");
}

#[test]
fn bad_links_slow_hosts_and_flipped_bits_from_a_shell() {
    let shell = Shell::new();
    shell.ok("up --name bad");
    assert!(!shell.ok("status").contains("FAULTS"));
    let said = shell.ok("fault a.svc --way from --loss 10% --delay 1.5 --jitter 0.5 --seed 7");
    assert_eq!(said, "a.svc: faults: loss 10%, delay 1.5ms ± 500µs, seed 7\n");
    let faults = |way: &str| shell.link("a.svc")[way]["faults"].clone();
    assert_eq!(
        (&faults("from_host")["loss"], &faults("from_host")["seed"]),
        (&0.1.into(), &7.into())
    );
    assert_eq!(faults("to_host")["loss"], 0.0);
    let status = shell.ok("status");
    assert!(status.contains("FAULTS") && status.contains("loss 10%, delay 1.5ms"), "{status}");
    shell.ok("fault a.svc --clear");
    assert!(!shell.ok("status").contains("FAULTS"));
    shell.ok("fault service --dup 1 --corrupt 0.5 --reorder 0.25");
    assert_eq!(faults("to_host")["duplicate"], 1.0);
    shell.ok("heal service");
    assert!(!shell.ok("status").contains("FAULTS"));
    // What cannot be is refused in words that help.
    assert!(shell.error("fault a.svc").contains("--loss"));
    assert!(shell.error("fault a.svc --loss 11").contains("use 0 to 1"));
    assert!(shell.error("fault a.svc --loss 0.1 --clear").contains("cannot be used with"));
    assert!(shell.error("fault d.svc --loss 0.1").contains("a.svc"));

    assert_eq!(shell.ok("slow a --cpu 20"), "a: 20% of a CPU\n");
    assert_eq!(shell.status()["hosts"][1]["slow"]["cpu_percent"], 20);
    assert!(shell.ok("status").contains("20% of a CPU"));
    // A command from the shell is a process of the slow host too.
    let busy = "import time; b = time.process_time(); e = time.monotonic() + 0.5; \
                [0 for _ in iter(lambda: time.monotonic() < e, False)]; \
                print(time.process_time() - b)";
    measure("20%: seconds of half a second", 0.0..0.2, || {
        let mut exec = shell.command("exec a -- python3 -c");
        let out = exec.arg(busy).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().parse().unwrap()
    });
    assert_eq!(shell.ok("slow a --clear"), "a: full speed\n");
    assert!(shell.error("slow a").contains("--cpu"));
    assert!(shell.error("slow d --cpu 10").contains("its hosts are"));

    let mut sleep = shell.command("exec b -- sleep 600").spawn().unwrap();
    eventually(PATIENCE, "sleep runs", || shell.status()["hosts"][2]["processes"] == 1);
    let said = shell.ok("flip b --process sleep --where stack --seed 3");
    assert!(said.contains("[stack]") && said.contains("flipped"), "{said}");
    assert!(shell.error("flip b --process nginx --where heap").contains("no process of host b"));
    assert!(shell.error("flip b --process sleep --where disk").contains("register"));
    shell.ok("kill b");
    sleep.wait().unwrap();

    // Version 1 cgroups, if this machine has them, go with a keeper that is killed.
    shell.ok("slow a --cpu 20 --memory 512");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let controllers = own.lines().flat_map(|l| l.split(':').nth(1)).flat_map(|c| c.split(','));
    let version_1 = controllers.filter(|c| ["cpu", "memory"].contains(c)).count();
    assert_eq!(cgroups_of_version_1("bad").len(), version_1);
    let keeper = shell.status()["keeper_pid"].as_u64().unwrap();
    let pid = nix::unistd::Pid::from_raw(keeper as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
    assert!(shell.error("status").contains("no lab is running"));
    assert_eq!(cgroups_of_version_1("bad"), Vec::<PathBuf>::new());
}

/// The lab's cgroups in mounted hierarchies of version 1, at any depth.
fn cgroups_of_version_1(lab: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let roots = mounts.lines().filter(|l| l.split(' ').nth(2) == Some("cgroup"));
    let mut left: Vec<PathBuf> = roots.flat_map(|l| l.split(' ').nth(1)).map(Into::into).collect();
    let mut found = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(&format!("steadfast-lab.{lab}.")) {
                    found.push(entry.path());
                }
                left.push(entry.path());
            }
        }
    }
    found
}

/// A keeper has only its open descriptors to clean up with when it is SIGKILLed.
#[test]
fn a_killed_keeper_leaves_nothing() {
    let shell = Shell::new();
    shell.ok("up --name doomed");
    let mut inside = shell.command("exec a -- sleep 600").spawn().unwrap();
    eventually(PATIENCE, "sleep runs", || shell.status()["hosts"][1]["processes"] == 1);
    let keeper = shell.status()["keeper_pid"].as_u64().unwrap();
    // All namespaces of all processes that the keeper has started.
    let children = |pid: u64| {
        let file = format!("/proc/{pid}/task");
        let tasks = fs::read_dir(file).unwrap().flatten();
        let lists = tasks.map(|t| fs::read_to_string(t.path().join("children")).unwrap());
        lists.flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    let inits: Vec<String> = children(keeper);
    assert_eq!(inits.len(), 3, "{inits:?}");
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
    let namespaces: Vec<_> = inits.iter().map(|pid| namespace(pid).unwrap()).collect();

    let pid = nix::unistd::Pid::from_raw(keeper as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
    // The next command may come before the kernel is done: it must cope.
    assert!(shell.error("status").contains("no lab is running"));
    assert!(!shell.dir.path().join("doomed").exists(), "the next command removes the directory");
    assert!(cgroups("doomed").is_empty(), "the next command removes the cgroups");
    assert_eq!(inside.wait().unwrap().code(), Some(128 + libc::SIGKILL));
    eventually(PATIENCE, "no process is in the lab's namespaces", || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let names = processes.map(|p| p.file_name().to_string_lossy().into_owned());
        !names.filter_map(|p| namespace(&p).ok()).any(|n| namespaces.contains(&n))
    });
    shell.ok("up --name doomed");
    assert_eq!(cgroups("doomed").len(), 3);
    shell.ok("down");
    assert!(cgroups("doomed").is_empty());
}

/// The lab's cgroups, wherever the machine has mounted cgroup2.
fn cgroups(lab: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|l| l.split(' ').nth(2) == Some("cgroup2"));
    let root = mount.and_then(|l| l.split(' ').nth(1)).expect("cgroup2 is mounted somewhere");
    let names = fs::read_dir(root).unwrap().flatten();
    let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.starts_with(&format!("steadfast-lab.{lab}."))).collect()
}

#[test]
fn several_labs_are_told_apart() {
    let shell = Shell::new();
    assert!(shell.error("status").contains("no lab is running"));
    shell.ok("up");
    shell.ok("up");
    let error = shell.error("status");
    assert!(error.contains("--name") && error.contains("lab1, lab2"), "{error}");
    shell.ok("status --name lab2");
    assert!(shell.error("up --name lab1").contains("already running"));
    assert!(shell.error("up --name ../x").contains("cannot name a lab"));
    shell.ok("down --name lab1");
    assert_eq!(shell.status()["name"], "lab2");
}

#[test]
fn nonsense_on_the_control_socket_disturbs_nobody() {
    let shell = Shell::new();
    shell.ok("up");
    let socket = shell.dir.path().join("lab1/control");
    let send = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(bytes);
        std::io::read_to_string(stream).unwrap_or_default()
    };
    for bad in [&b"\n"[..], b"{\"request\":\"fly\"}\n", b"\xff\xfe\n", &[b'['; 100_000]] {
        let answer = send(bad);
        assert!(answer.is_empty() || answer.contains("bad request"), "{answer}");
    }
    drop(UnixStream::connect(&socket).unwrap());
    assert_eq!(shell.status()["name"], "lab1");
}

/// `up --config`: daemons with their configuration, again after a boot, logs and captures
/// kept when asked.
#[test]
fn nodes_run_with_their_configuration() {
    let shell = Shell::new();
    let write = |name: &str, text: &str| {
        let path = shell.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let daemon = write("daemon", "#!/bin/sh\necho running $1 $2 with $(cat $3)\nexec sleep 600\n");
    Command::new("chmod").args(["+x", &daemon]).status().unwrap();
    let config = write("config.toml", "some = 'thing'");
    let keep = shell.dir.path().join("kept");
    let up = format!("up --config {config} --capture svc --keep {}", keep.display());
    let out = shell.command(&up).env("STEADFAST_BIN", &daemon).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));

    let log =
        |host: &str| fs::read_to_string(shell.dir.path().join(format!("lab1/{host}.log"))).unwrap();
    assert_eq!(log("a"), "running node --config with some = 'thing'\n");
    let daemon_pid = |host: usize| shell.status()["hosts"][host]["daemon_pid"].clone();
    assert!(daemon_pid(0).is_null() && daemon_pid(1).is_u64() && daemon_pid(2).is_u64());
    shell.ok("kill a --how daemon");
    eventually(PATIENCE, "the daemon is dead", || daemon_pid(1).is_null());
    shell.ok("exec a -- true");
    shell.ok("kill b");
    shell.ok("boot b");
    assert!(daemon_pid(2).is_u64());
    eventually(PATIENCE, "it says so again", || log("b").lines().count() == 2);
    shell.ok("down");
    for file in ["a.log", "b.log", "svc.pcap", "keeper.log"] {
        assert!(keep.join("lab1").join(file).exists(), "{file} was not kept");
    }
    fs::remove_dir_all(keep).unwrap();

    // A daemon that ends tells why, and nothing stays up.
    fs::write(&daemon, "#!/bin/sh\nexit 3\n").unwrap();
    let out =
        shell.command(&format!("up --config {config}")).env("STEADFAST_BIN", &daemon).output();
    let said = String::from_utf8_lossy(&out.unwrap().stderr).into_owned();
    assert!(said.contains("ended before it was ready") && said.contains("3"), "{said}");
    assert!(!Path::new(&shell.dir.path().join("lab1")).exists());
}
