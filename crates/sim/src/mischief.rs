//! What goes wrong, drawn from the seed: one fault at a time, at intervals from far below the
//! heartbeat to beyond the longest wait, so that faults also fall into the recovery from others.

use cluster::{ArbiterKind, Event, Link, Nanos};

use crate::host::{Neighbours, Power};
use crate::watch::Violation;
use crate::world::{Due, World, name};

impl World {
    /// Does one mischief and plans the next one.
    pub fn do_mischief(&mut self) -> Result<(), Violation> {
        if !self.mischief {
            return Ok(());
        }
        let longest = self.dice.pick(&[3, 30, 30, 130, 130, 600]) * self.detection / 100;
        let far = self.dice.chance(30);
        let after = self.dice.below(if far { self.alone_wait * 3 / 2 } else { longest });
        self.plan(after, Due::Mischief);

        let n = self.dice.side();
        let link = self.dice.pick(&Link::ALL);
        if self.net.is_delicate(self.now) {
            return Ok(());
        }
        match self.dice.below(100) {
            0..8 => self.end(n, true),
            8..18 => self.end(n, false),
            18..38 => self.pause(n),
            38..48 => {
                self.crash_server(n)?;
                let after = self.some_time();
                self.tell_later(n, after, Event::ServiceReady(true));
            }
            48..55 => {
                let by_user = self.dice.coin();
                self.tell(n, Event::SwitchoverRequested { by_user })?;
            }
            55..60 => self.shut_down(n)?,
            60..66 => {
                let up = self.dice.chance(700);
                self.set_carrier(n, link, up)?;
            }
            66..76 => self.cut(n, link),
            76..79 => self.partition(),
            79 => self.isolate(n),
            80..88 => self.net.change_manner(link, &mut self.dice),
            88..91 => {
                let drift_ppm = self.dice.pick(&[-200, 0, 200]);
                self.hosts[n].clock.set_drift(self.now, drift_ppm);
            }
            91..93 => {
                let ready = self.dice.coin();
                self.tell_later(n, 0, Event::ServiceReady(ready));
            }
            93..95 => {
                let (answer, silent) = (Neighbours::Answer, Neighbours::Silent);
                self.hosts[n].neighbours =
                    self.dice.pick(&[answer, answer, silent, Neighbours::Unknown]);
            }
            95..97 => self.hosts[n].arbiter = self.dice.coin(),
            97 => self.tell(n, Event::Tick)?,
            _ => self.heal()?,
        }
        Ok(())
    }

    fn some_time(&mut self) -> Nanos {
        let longest = self.dice.pick(&[2, 10, 50, 200]) * self.detection / 10;
        self.dice.below(longest)
    }

    /// A host or only its daemon dies; it is started again some time later.
    fn end(&mut self, n: usize, host: bool) {
        if self.hosts[n].power == Power::HostDown {
            return;
        }
        self.kill(n, host);
        let after = self.some_time();
        self.plan(after, Due::Start { node: n });
    }

    fn shut_down(&mut self, n: usize) -> Result<(), Violation> {
        if !self.hosts[n].is_running() || self.hosts[n].leaving {
            return Ok(());
        }
        self.hosts[n].leaving = true;
        let life = self.hosts[n].incarnation;
        self.plan(10 * self.detection, Due::GivesUpWaiting { node: n, life });
        let after = 10 * self.detection + self.some_time();
        self.plan(after, Due::Start { node: n });
        self.tell(n, Event::Shutdown)
    }

    fn cut(&mut self, n: usize, link: Link) {
        let cut = self.dice.chance(600);
        let ways = if self.dice.coin() { vec![n] } else { vec![0, 1] };
        for from in ways {
            if self.net.set_cut(from, link, cut) {
                self.note(|_| format!("{link:?} from {} cut: {cut}", name(from)));
            }
        }
    }

    /// Cuts all there is in one direction or both; without an arbiter all but one link, at random.
    fn partition(&mut self) {
        let ways = self.dice.pick(&[[0, 0], [1, 1], [0, 1]]);
        let first = self.dice.coin();
        for from in ways {
            for link in if first { Link::ALL } else { [Link::Service, Link::Cluster] } {
                self.net.set_cut(from, link, true);
            }
        }
        self.note(|_| String::from("partition"));
    }

    /// Everybody, the other node included, loses sight of one node. Not for as long as the alone
    /// wait: a primary that has no backup serves on, and the idle other one begins then.
    fn isolate(&mut self, n: usize) {
        let awake = self.hosts.iter().all(|host| host.power != Power::Paused);
        if awake && self.net.isolate(n, self.now) {
            self.note(|_| format!("{} is isolated", name(n)));
            let after = self.some_time().min(self.alone_wait / 2);
            self.plan(after, Due::Rejoin);
        }
    }

    /// All links work again.
    pub fn heal(&mut self) -> Result<(), Violation> {
        self.note(|_| String::from("links heal"));
        for (n, link) in self.net.heal() {
            self.tell(n, Event::Carrier { link, up: true })?;
        }
        for host in &mut self.hosts {
            (host.neighbours, host.arbiter) = (Neighbours::Answer, true);
        }
        Ok(())
    }

    /// Ends every fault but, perhaps, the death of one host: nothing unusual happens from here
    /// on. Returns the node that stays dead.
    pub fn make_peace(&mut self) -> Result<Option<usize>, Violation> {
        self.mischief = false;
        self.forget_plans();
        self.note(|_| String::from("faults end"));
        self.heal()?;
        let dead = self.dice.chance(250).then(|| self.dice.side());
        for n in [0, 1] {
            if dead == Some(n) {
                let host = self.dice.coin();
                self.kill(n, host);
            } else if self.hosts[n].leaving || !self.hosts[n].is_running() {
                self.kill(n, false);
                self.start(n)?;
            } else if self.hosts[n].power == Power::Paused {
                let life = self.hosts[n].incarnation;
                self.plan(self.detection, Due::Resume { node: n, life });
            }
            self.tell_later(n, self.detection, Event::ServiceReady(true));
        }
        Ok(dead)
    }

    /// Whether the pair is as it should be when nothing is wrong.
    pub fn is_settled(&self, dead: Option<usize>) -> bool {
        match dead {
            Some(dead) => self.is_simplex(1 - dead),
            None => {
                let up = self.hosts.iter().all(|host| host.power == Power::Up && host.server);
                up && (self.is_duplex(0) || self.is_duplex(1))
            }
        }
    }

    /// Longest time the pair may take to settle after peace was made.
    pub fn patience(&self) -> Nanos {
        let external = self.setup.arbiter == ArbiterKind::External;
        2 * self.alone_wait + 20 * self.detection * if external { 2 } else { 1 }
    }
}
