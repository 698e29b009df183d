//! openssl: keys, signatures, certificates, a cipher and digests over a few megabytes. The inverse
//! operation checks each.

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(round_trips => keys_and_ciphers);

fn keys_and_ciphers(mode: Mode) {
    let scratch = Scratch::new("openssl");
    let data: Vec<u8> = (0..4_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    scratch.write("data", &data);
    let openssl = |mode: Mode, line: &str| {
        let program = Program::new(tool("openssl", "openssl")).args(line.split_whitespace());
        program.run_clean(&scratch, mode).stdout()
    };

    for kind in ["RSA -pkeyopt rsa_keygen_bits:2048", "EC -pkeyopt ec_paramgen_curve:P-256"] {
        openssl(mode, &format!("genpkey -out key.pem -algorithm {kind}"));
        openssl(mode, "pkey -in key.pem -pubout -out public.pem");
        openssl(mode, "dgst -sha256 -sign key.pem -out signature data");
        let verdict = openssl(mode, "dgst -sha256 -verify public.pem -signature signature data");
        assert_eq!(verdict, "Verified OK\n", "{mode:?} {kind}");
        openssl(mode, "req -x509 -new -key key.pem -subj /CN=uslab -days 2 -out certificate.pem");
        let verdict = openssl(mode, "verify -CAfile certificate.pem certificate.pem");
        assert_eq!(verdict, "certificate.pem: OK\n", "{mode:?} {kind}");
    }

    openssl(mode, "enc -aes-256-ctr -pbkdf2 -pass pass:secret -in data -out data.enc");
    openssl(mode, "enc -d -aes-256-ctr -pbkdf2 -pass pass:secret -in data.enc -out data.out");
    assert!(
        std::fs::read(scratch.join("data.out")).expect("decrypted data") == data,
        "{mode:?}: not the data"
    );
    for digest in ["sha1", "sha512", "sha3-256", "blake2b512"] {
        let line = format!("dgst -{digest} data");
        assert_eq!(openssl(mode, &line), openssl(Mode::Plain, &line), "{mode:?}: {digest}");
    }
}
