package services

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // what the protocol prescribes
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
)

// Of MySQL's protocol this is what it takes to sign in and to run a statement
// that has no rows: https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html.
// MariaDB speaks the same. A server that wants more than that (TLS, another way
// to sign in) is asked with the client that its image has.

// Capabilities (page_protocol_basic_capabilities).
const (
	mysqlLongPassword   = 1 << 0
	mysqlConnectWithDB  = 1 << 3
	mysqlProtocol41     = 1 << 9
	mysqlSecureConn     = 1 << 15
	mysqlPluginAuth     = 1 << 19
	mysqlCharset        = 45 // utf8mb4_general_ci
	mysqlMaxPacket      = 1 << 20
	mysqlMaxKey         = 8192 // bits; a server has 2048, and more only costs this host
	mysqlNativePassword = "mysql_native_password"
	mysqlCachingSHA2    = "caching_sha2_password"
)

// First bytes of what a server sends.
const (
	mysqlOK       = 0x00
	mysqlMoreData = 0x01
	mysqlSwitch   = 0xfe
	mysqlError    = 0xff
)

// mysqlWire is the connection to one server. Its packets are numbered, from
// zero on in each exchange.
type mysqlWire struct {
	c   net.Conn
	seq byte
}

// tellMySQL signs in as s says and runs one statement that has no rows. An error
// quotes the server. c is closed.
func tellMySQL(ctx context.Context, c net.Conn, s Service, statement string) error {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	w := &mysqlWire{c: c}
	if err := w.signIn(s); err != nil {
		return err
	}
	w.seq = 0
	if err := w.write(append([]byte{3}, statement...)); err != nil { // COM_QUERY
		return err
	}
	answer, err := w.read()
	if err != nil {
		return err
	}
	if answer[0] != mysqlOK {
		return errors.New("the server answered the statement with rows")
	}
	w.seq = 0
	_ = w.write([]byte{1}) // COM_QUIT: a server that does not hear it counts an aborted client
	return nil
}

func (w *mysqlWire) signIn(s Service) error {
	greeting, err := w.read()
	if err != nil {
		return err
	}
	plugin, salt, err := mysqlGreeting(greeting)
	if err != nil {
		return err
	}
	proof, err := mysqlProof(plugin, s.Password, salt)
	if err != nil {
		// Perhaps it agrees to another one.
		plugin = mysqlNativePassword
		if proof, err = mysqlProof(plugin, s.Password, salt); err != nil {
			return err
		}
	}
	flags := uint32(mysqlLongPassword | mysqlProtocol41 | mysqlSecureConn | mysqlPluginAuth)
	if s.Database != "" {
		flags |= mysqlConnectWithDB
	}
	b := binary.LittleEndian.AppendUint32(nil, flags)
	b = binary.LittleEndian.AppendUint32(b, mysqlMaxPacket)
	b = append(b, mysqlCharset)
	b = append(b, make([]byte, 23)...)
	b = append(append(b, s.User...), 0)
	b = append(append(b, byte(len(proof))), proof...)
	if s.Database != "" {
		b = append(append(b, s.Database...), 0)
	}
	b = append(append(b, plugin...), 0)
	if err := w.write(b); err != nil {
		return err
	}
	// A hostile server could go on for ever.
	for range 8 {
		answer, err := w.read()
		if err != nil {
			return err
		}
		switch answer[0] {
		case mysqlOK:
			return nil
		case mysqlSwitch:
			name, rest, _ := bytes.Cut(answer[1:], []byte{0})
			plugin, salt = string(name), bytes.TrimSuffix(rest, []byte{0})
			if proof, err = mysqlProof(plugin, s.Password, salt); err == nil {
				err = w.write(proof)
			}
		case mysqlMoreData:
			err = w.more(plugin, answer[1:], s.Password, salt)
		default:
			err = fmt.Errorf("an answer of kind %#x while signing in", answer[0])
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the server does not come to an end with signing in")
}

// more answers what caching_sha2_password has to say beyond the proof: that it
// was enough, that the password itself is wanted, or the key for it.
func (w *mysqlWire) more(plugin string, data []byte, password string, salt []byte) error {
	switch {
	case plugin != mysqlCachingSHA2 || len(data) == 0:
		return errors.New("the server asks for more than a password")
	case len(data) == 1 && data[0] == 3: // fast_auth_success
		return nil
	case len(data) == 1 && data[0] == 4: // perform_full_authentication
		return w.write([]byte{2}) // request_public_key
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return errors.New("the server's public key is none")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return err
	}
	key, ok := parsed.(*rsa.PublicKey)
	if !ok || len(salt) == 0 {
		return errors.New("the server's public key is not RSA")
	}
	if n := key.N.BitLen(); n > mysqlMaxKey {
		return fmt.Errorf("the server's public key has %d bits", n)
	}
	plain := append([]byte(password), 0)
	for i := range plain {
		plain[i] ^= salt[i%len(salt)]
	}
	secret, err := rsa.EncryptOAEP(sha1.New(), rand.Reader, key, plain, nil) //nolint:gosec // what the protocol prescribes
	if err != nil {
		return err
	}
	return w.write(secret)
}

// mysqlGreeting reads the server's first packet (Protocol::HandshakeV10).
func mysqlGreeting(b []byte) (plugin string, salt []byte, err error) {
	const fixed = 4 + 8 + 1 + 2 + 1 + 2 + 2 + 1 + 10
	bad := errors.New("what listens there does not greet as MySQL does")
	if b[0] != 10 {
		return "", nil, bad
	}
	_, b, ok := bytes.Cut(b[1:], []byte{0}) // its version
	if !ok || len(b) < fixed {
		return "", nil, bad
	}
	salt = append(salt, b[4:12]...)
	b = b[fixed:]
	// The rest of the salt is 12 bytes and a NUL; the name of the plugin follows.
	if len(b) < 13 {
		return "", nil, bad
	}
	salt = append(salt, b[:12]...)
	name, _, _ := bytes.Cut(b[13:], []byte{0})
	return string(name), salt, nil
}

// mysqlProof is the proof that one knows a password.
func mysqlProof(plugin, password string, salt []byte) ([]byte, error) {
	digest := func(h hash.Hash, parts ...[]byte) []byte {
		for _, p := range parts {
			h.Write(p)
		}
		return h.Sum(nil)
	}
	var proof, mask []byte
	switch plugin {
	case mysqlNativePassword: // SHA1(p) xor SHA1(salt + SHA1(SHA1(p)))
		proof = digest(sha1.New(), []byte(password))               //nolint:gosec // what the protocol prescribes
		mask = digest(sha1.New(), salt, digest(sha1.New(), proof)) //nolint:gosec // the same
	case mysqlCachingSHA2: // SHA256(p) xor SHA256(SHA256(SHA256(p)) + salt)
		proof = digest(sha256.New(), []byte(password))
		mask = digest(sha256.New(), digest(sha256.New(), proof), salt)
	default:
		return nil, fmt.Errorf("the server wants %q to sign in, which is not known here", oneLine(plugin))
	}
	if password == "" {
		return nil, nil
	}
	subtle.XORBytes(proof, proof, mask)
	return proof, nil
}

// read returns the next packet, which has a byte at least. What a server says is
// an error is one.
func (w *mysqlWire) read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(w.c, head[:]); err != nil {
		return nil, err
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if n == 0 || n > mostOfAnAnswer {
		return nil, fmt.Errorf("a packet of %d bytes", n)
	}
	w.seq = head[3] + 1
	b := make([]byte, n)
	if _, err := io.ReadFull(w.c, b); err != nil {
		return nil, err
	}
	if b[0] == mysqlError {
		text := b[min(3, n):]
		if len(text) > 6 && text[0] == '#' { // the SQL state
			text = text[6:]
		}
		return nil, fmt.Errorf("the server says: %s", oneLine(string(text)))
	}
	return b, nil
}

func (w *mysqlWire) write(b []byte) error {
	head := []byte{byte(len(b)), byte(len(b) >> 8), byte(len(b) >> 16), w.seq}
	w.seq++
	_, err := w.c.Write(append(head, b...))
	return err
}
