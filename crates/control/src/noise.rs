//! The two messages of a Noise NNpsk0 handshake, with what each side says of itself.
//!
//! With `psk0` the key is mixed in first, so already message 1 carries an authenticated payload:
//! a stranger is recognised before the first Diffie-Hellman. But message 1 can be recorded and
//! sent again; only a datagram under the finished session's keys proves that its sender lives.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::packet::{PUBLIC_KEY, TAG};
use crate::{Psk, Rng};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const NAME_MAX: usize = 255;

/// What a node says of itself inside a handshake, encrypted.
///
/// Session number (4 bytes), incarnation (8), length of the name (1), name; big-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The number that the peer must put on datagrams of this session; never 0. Means nothing in a
    /// stream.
    pub session: u32,
    pub incarnation: u64,
    pub name: String,
}

impl Hello {
    fn emit(&self) -> Vec<u8> {
        let length = u8::try_from(self.name.len()).expect("names have at most 255 bytes");
        let (session, incarnation) = (self.session.to_be_bytes(), self.incarnation.to_be_bytes());
        [&session[..], &incarnation, &[length], self.name.as_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Hello> {
        let (session, rest) = bytes.split_first_chunk()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (&length, name) = rest.split_first()?;
        let session = u32::from_be_bytes(*session);
        if session == 0 || name.is_empty() || name.len() != usize::from(length) {
            return None;
        }
        let name = str::from_utf8(name).ok()?.to_owned();
        Some(Hello { session, incarnation: u64::from_be_bytes(*incarnation), name })
    }
}

const HELLO_MAX: usize = 4 + 8 + 1 + NAME_MAX;
/// The longest message of a handshake.
pub(crate) const MESSAGE_MAX: usize = PUBLIC_KEY + HELLO_MAX + TAG;

/// A handshake that waits for its answer.
pub(crate) struct Initiator(Box<HandshakeState>);

impl Initiator {
    /// Begins a handshake: the state and message 1.
    pub fn begin(psk: &Psk, prologue: &[u8], rng: &Rng, hello: &Hello) -> (Initiator, Vec<u8>) {
        let mut state = builder(psk, prologue, rng).build_initiator().expect("a sound pattern");
        let message = write(&mut state, hello);
        (Initiator(Box::new(state)), message)
    }

    /// Reads message 2. A forged one leaves the handshake waiting for the real one.
    pub fn finish(mut self, message: &[u8]) -> Result<(StatelessTransportState, Hello), Initiator> {
        match read(&mut self.0, message) {
            Some(hello) => Ok((transport(*self.0), hello)),
            None => Err(self),
        }
    }
}

/// A message 1 that a holder of the key has made, now or once.
pub(crate) struct Responder {
    state: HandshakeState,
    pub hello: Hello,
}

impl Responder {
    /// Reads message 1; `None` if its maker has another key, or it was damaged.
    pub fn begin(psk: &Psk, prologue: &[u8], rng: &Rng, message: &[u8]) -> Option<Responder> {
        let mut state = builder(psk, prologue, rng).build_responder().expect("a sound pattern");
        let hello = read(&mut state, message)?;
        Some(Responder { state, hello })
    }

    /// Makes message 2 and the session's keys: the expensive half. `None` if the peer's public
    /// key is one that admits no agreement.
    pub fn finish(mut self, hello: &Hello) -> Option<(StatelessTransportState, Vec<u8>)> {
        let mut message = vec![0; MESSAGE_MAX];
        let length = self.state.write_message(&hello.emit(), &mut message).ok()?;
        message.truncate(length);
        Some((transport(self.state), message))
    }
}

/// Reads a message of either kind, of any length.
fn read(state: &mut HandshakeState, message: &[u8]) -> Option<Hello> {
    if !(PUBLIC_KEY + TAG..=MESSAGE_MAX).contains(&message.len()) {
        return None;
    }
    let mut payload = [0; MESSAGE_MAX];
    let length = state.read_message(message, &mut payload).ok()?;
    // A reader that fails after this point has moved on and cannot read another message; that
    // happens only to what a holder of the key wrote.
    Hello::parse(&payload[..length])
}

fn write(state: &mut HandshakeState, hello: &Hello) -> Vec<u8> {
    let mut message = vec![0; MESSAGE_MAX];
    let length = state.write_message(&hello.emit(), &mut message).expect("message 1 fits");
    message.truncate(length);
    message
}

fn transport(state: HandshakeState) -> StatelessTransportState {
    state.into_stateless_transport_mode().expect("both messages are done")
}

fn builder<'a>(psk: &'a Psk, prologue: &'a [u8], rng: &Rng) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("a pattern that snow knows");
    Builder::with_resolver(pattern, Box::new(Resolver(rng.clone())))
        .psk(0, psk.bytes())
        .and_then(|builder| builder.prologue(prologue))
        .expect("one key and one prologue")
}

/// The primitives, with our random numbers.
struct Resolver(Rng);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(self.0.clone()))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    /// ring's: it takes much less time than snow's own for a message of a few hundred bytes.
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    fn hello(session: u32, name: &str) -> Hello {
        Hello { session, incarnation: 7, name: name.to_owned() }
    }

    #[test]
    fn both_sides_learn_the_other_and_share_keys() {
        let (psk, rng) = (Psk::from_bytes([1; 32]), Rng::system());
        let (initiator, first) = Initiator::begin(&psk, b"p", &rng, &hello(3, "a"));
        let responder = Responder::begin(&psk, b"p", &rng, &first).unwrap();
        assert_eq!(responder.hello, hello(3, "a"));
        let (theirs, second) = responder.finish(&hello(4, "b")).unwrap();
        let mut forged = second.clone();
        *forged.last_mut().unwrap() ^= 1;
        let initiator = initiator.finish(&forged).expect_err("a forged answer is refused");
        let (ours, peer) = initiator.finish(&second).ok().expect("the real one still works");
        assert_eq!(peer, hello(4, "b"));
        let (mut sealed, mut opened) = ([0; 64], [0; 64]);
        let length = ours.write_message(5, b"hi", &mut sealed).unwrap();
        let length = theirs.read_message(5, &sealed[..length], &mut opened).unwrap();
        assert_eq!(&opened[..length], b"hi");
    }

    #[test]
    fn another_key_or_prologue_is_refused() {
        let (psk, rng) = (Psk::from_bytes([1; 32]), Rng::system());
        let (_, first) = Initiator::begin(&psk, b"p", &rng, &hello(3, "a"));
        assert!(Responder::begin(&psk, b"q", &rng, &first).is_none());
        assert!(Responder::begin(&Psk::from_bytes([2; 32]), b"p", &rng, &first).is_none());
        assert!(Responder::begin(&psk, b"p", &rng, &first[..first.len() - 1]).is_none());
    }

    /// Nodes of other releases may seal with another implementation of the same cipher.
    #[test]
    fn both_implementations_of_the_cipher_understand_each_other() {
        let resolvers: [&dyn CryptoResolver; 2] = [&Resolver(Rng::system()), &DefaultResolver];
        let ciphers = resolvers.map(|resolver| {
            let mut cipher = resolver.resolve_cipher(&CipherChoice::ChaChaPoly).unwrap();
            cipher.set(&[7; 32]);
            cipher
        });
        for length in [0, 1, 300, 5000] {
            let plaintext = vec![1; length];
            let mut sealed = [vec![0; length + TAG], vec![0; length + TAG]];
            for (cipher, sealed) in ciphers.iter().zip(&mut sealed) {
                assert_eq!(cipher.encrypt(9, b"more", &plaintext, sealed), length + TAG);
            }
            assert_eq!(sealed[0], sealed[1]);
            for cipher in &ciphers {
                let mut opened = vec![0; length + TAG];
                assert_eq!(cipher.decrypt(9, b"more", &sealed[0], &mut opened).ok(), Some(length));
                assert_eq!(opened[..length], plaintext);
            }
        }
    }

    proptest! {
        #[test]
        fn a_hello_reads_back(session in 1u32.., incarnation: u64, name in "[a-z]{1,255}") {
            let hello = Hello { session, incarnation, name };
            prop_assert_eq!(Hello::parse(&hello.emit()), Some(hello));
        }

        #[test]
        fn any_bytes_are_read_as_a_hello_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(hello.emit(), bytes);
            }
        }
    }
}
