package services

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // what the protocol prescribes
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// serve is the other end of a connection; f is the server.
func serve(t *testing.T, f func(net.Conn)) net.Conn {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer b.Close()
		f(b)
	}()
	t.Cleanup(func() { a.Close(); b.Close(); <-done })
	return a
}

// closed fails the test unless the caller's end of c is closed.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetDeadline(time.Now()); err == nil {
		t.Error("the connection was left open")
	}
}

func TestAskRedis(t *testing.T) {
	for answer, want := range map[string]string{
		"+PONG\r\n": "", "-NOAUTH Authentication required.\r\n": "NOAUTH", "-LOADING wait\r\n": "LOADING",
		"": "EOF", strings.Repeat("x", 4096): "EOF",
	} {
		c := serve(t, func(c net.Conn) {
			buf := make([]byte, 14)
			if _, err := io.ReadFull(c, buf); err == nil && string(buf) == "*1\r\n$4\r\nPING\r\n" {
				_, _ = c.Write([]byte(answer))
			}
		})
		err := askRedis(t.Context(), c, Service{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", answer, err)
		}
		closed(t, c)
	}
}

// mysqlServer is a MySQL server with one account, root, as far as signing in and
// one statement go.
type mysqlServer struct {
	t        *testing.T
	password string
	greets   string // the plugin that it greets with
	plugin   string // that of the account
	cached   bool   // caching_sha2_password knows the password's digest already
	answer   []byte // of the statement; nil: OK
	ran      string
}

var mysqlSalt = []byte("0123456789abcdefghij")

func (m *mysqlServer) run(c net.Conn) {
	w := &mysqlWire{c: c}
	greeting := append([]byte{10}, "8.0.42-stand-in\x00"...)
	greeting = append(greeting, 1, 0, 0, 0)
	greeting = append(append(greeting, mysqlSalt[:8]...), 0)
	greeting = append(greeting, 0xff, 0xff, 45, 2, 0, 0xff, 0xff, 21)
	greeting = append(greeting, make([]byte, 10)...)
	greeting = append(append(greeting, mysqlSalt[8:]...), 0)
	greeting = append(append(greeting, m.greets...), 0)
	if w.write(greeting) != nil {
		return
	}
	reply, err := w.read()
	if err != nil {
		return
	}
	flags := uint32(reply[0]) | uint32(reply[1])<<8 | uint32(reply[2])<<16
	user, rest, _ := bytes.Cut(reply[32:], []byte{0})
	n := int(rest[0])
	proof, rest := rest[1:1+n], rest[1+n:]
	var database []byte
	if flags&mysqlConnectWithDB != 0 {
		database, rest, _ = bytes.Cut(rest, []byte{0})
	}
	plugin, _, _ := bytes.Cut(rest, []byte{0})
	if string(user) != "root" || string(database) != "app" {
		m.refuse(w)
		return
	}
	if string(plugin) != m.plugin {
		if w.write(append(append([]byte{mysqlSwitch}, m.plugin+"\x00"...), append(mysqlSalt, 0)...)) != nil {
			return
		}
		if proof, err = w.read(); err != nil {
			return
		}
	}
	want, err := mysqlProof(m.plugin, m.password, mysqlSalt)
	if err != nil {
		m.t.Error(err)
	}
	switch {
	case m.plugin == mysqlCachingSHA2 && !m.cached:
		if !m.full(w) {
			m.refuse(w)
			return
		}
	case !bytes.Equal(proof, want):
		m.refuse(w)
		return
	case m.plugin == mysqlCachingSHA2:
		if w.write([]byte{mysqlMoreData, 3}) != nil {
			return
		}
	}
	if w.write([]byte{mysqlOK, 0, 0, 2, 0, 0, 0}) != nil {
		return
	}
	query, err := w.read()
	if err != nil || query[0] != 3 {
		return
	}
	m.ran = string(query[1:])
	if m.answer == nil {
		m.answer = []byte{mysqlOK, 0, 0, 2, 0, 0, 0}
	}
	if w.write(m.answer) == nil {
		_, _ = w.read() // COM_QUIT
	}
}

func (m *mysqlServer) refuse(w *mysqlWire) {
	_ = w.write(append([]byte{mysqlError, 0x15, 0x04}, "#28000Access denied for user"...))
}

// full asks for the password itself, under the server's public key.
func (m *mysqlServer) full(w *mysqlWire) bool {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		m.t.Error(err)
		return false
	}
	if w.write([]byte{mysqlMoreData, 4}) != nil {
		return false
	}
	if b, err := w.read(); err != nil || !bytes.Equal(b, []byte{2}) {
		return false
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		m.t.Error(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if w.write(append([]byte{mysqlMoreData}, text...)) != nil {
		return false
	}
	secret, err := w.read()
	if err != nil {
		return false
	}
	plain, err := rsa.DecryptOAEP(sha1.New(), nil, key, secret, nil) //nolint:gosec // what the protocol prescribes
	if err != nil {
		return false
	}
	for i := range plain {
		plain[i] ^= mysqlSalt[i%len(mysqlSalt)]
	}
	return string(plain) == m.password+"\x00"
}

func TestTellMySQL(t *testing.T) {
	const statement = "DO 1"
	s := Service{Name: "mysql", User: "root", Password: "right", Database: "app"}
	for name, tt := range map[string]struct {
		server mysqlServer
		s      Service
		want   string // in the error
	}{
		"native":           {mysqlServer{password: "right", greets: mysqlNativePassword, plugin: mysqlNativePassword}, s, ""},
		"native, wrong":    {mysqlServer{password: "other", greets: mysqlNativePassword, plugin: mysqlNativePassword}, s, "Access denied"},
		"native, none":     {mysqlServer{greets: mysqlNativePassword, plugin: mysqlNativePassword}, Service{User: "root", Database: "app"}, ""},
		"switched":         {mysqlServer{password: "right", greets: mysqlCachingSHA2, plugin: mysqlNativePassword}, s, ""},
		"sha2, cached":     {mysqlServer{password: "right", greets: mysqlCachingSHA2, plugin: mysqlCachingSHA2, cached: true}, s, ""},
		"sha2, in full":    {mysqlServer{password: "right", greets: mysqlCachingSHA2, plugin: mysqlCachingSHA2}, s, ""},
		"sha2, wrong":      {mysqlServer{password: "other", greets: mysqlCachingSHA2, plugin: mysqlCachingSHA2}, s, "Access denied"},
		"unknown greeting": {mysqlServer{password: "right", greets: "sha256_password", plugin: mysqlNativePassword}, s, ""},
		"rows":             {mysqlServer{password: "right", greets: mysqlNativePassword, plugin: mysqlNativePassword, answer: []byte{1}}, s, "rows"},
		"statement fails":  {mysqlServer{password: "right", greets: mysqlNativePassword, plugin: mysqlNativePassword, answer: append([]byte{mysqlError, 1, 1}, "#42000no such user"...)}, s, "no such user"},
	} {
		t.Run(name, func(t *testing.T) {
			m := tt.server
			m.t = t
			c := serve(t, m.run)
			err := tellMySQL(t.Context(), c, tt.s, statement)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
			if (err == nil || tt.want == "no such user") && m.ran != statement {
				t.Errorf("it ran %q", m.ran)
			}
			closed(t, c)
		})
	}
}

// TestServerThatSaysNothing: whoever asks does not wait for ever.
func TestServerThatSaysNothing(t *testing.T) {
	for name, ask := range map[string]func(context.Context, net.Conn) error{
		"mysql": func(ctx context.Context, c net.Conn) error { return tellMySQL(ctx, c, Service{}, "DO 1") },
		"redis": func(ctx context.Context, c net.Conn) error { return askRedis(ctx, c, Service{}) },
		"postgres": func(ctx context.Context, c net.Conn) error {
			_, err := askPostgres(ctx, c, Service{}, "SELECT 1")
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := serve(t, func(c net.Conn) {
			// It has heard the first byte, or the other end waits for one.
			if name != "mysql" {
				_, _ = c.Read(make([]byte, 1))
			}
			cancel()
			_, _ = io.Copy(io.Discard, c)
		})
		if err := ask(ctx, c); err == nil {
			t.Errorf("%s: no error", name)
		}
		closed(t, c)
	}
}

// postgresServer asks for a password in clear and answers one query.
func postgresServer(password string, answer []byte) func(net.Conn) {
	return func(c net.Conn) {
		b := pgproto3.NewBackend(c, c)
		start, err := b.ReceiveStartupMessage()
		if err != nil {
			return
		}
		m, ok := start.(*pgproto3.StartupMessage)
		if !ok || m.Parameters["user"] != "app" || m.Parameters["database"] != "data" {
			return
		}
		b.Send(&pgproto3.AuthenticationCleartextPassword{})
		if b.Flush() != nil || b.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
			return
		}
		msg, err := b.Receive()
		if err != nil {
			return
		}
		if p, ok := msg.(*pgproto3.PasswordMessage); !ok || p.Password != password {
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"})
			_ = b.Flush()
			return
		}
		b.Send(&pgproto3.AuthenticationOk{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		if msg, err = b.Receive(); err != nil {
			return
		}
		if _, ok := msg.(*pgproto3.Query); !ok {
			return
		}
		b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("?column?"), DataTypeOID: 23}}})
		b.Send(&pgproto3.DataRow{Values: [][]byte{answer}})
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	}
}

func TestAskPostgres(t *testing.T) {
	// None of these is about the guest's server.
	for k, v := range map[string]string{
		"PGHOST": "elsewhere", "PGPORT": "1", "PGUSER": "other", "PGPASSWORD": "other", "PGDATABASE": "other", "PGSSLMODE": "require",
		"PGREQUIREAUTH": "scram-sha-256", "PGTARGETSESSIONATTRS": "read-write", "PGOPTIONS": "-c x=y", "PGCONNECT_TIMEOUT": "1",
	} {
		t.Setenv(k, v)
	}
	s := Service{Name: "postgres", Container: "postgres-sandbox", Port: 5432, User: "app", Password: "right", Database: "data"}
	c := serve(t, postgresServer("right", []byte("1")))
	if got, err := askPostgres(t.Context(), c, s, "SELECT 1"); err != nil || got != "1" {
		t.Errorf("%q, %v", got, err)
	}
	closed(t, c)
	c = serve(t, postgresServer("other", nil))
	if _, err := askPostgres(t.Context(), c, s, "SELECT 1"); err == nil || !strings.Contains(err.Error(), "28P01") {
		t.Errorf("a wrong password: %v", err)
	}
	closed(t, c)
	c = serve(t, postgresServer("right", bytes.Repeat([]byte("x"), mostOfAnAnswer+1)))
	if _, err := askPostgres(t.Context(), c, s, "SELECT 1"); err == nil {
		t.Error("an answer beyond the limit was taken")
	}
}

// TestAServerWithoutEnd: each of its messages is short, and there is always one
// more.
func TestAServerWithoutEnd(t *testing.T) {
	first := make([]byte, 0, 1<<10)
	for _, m := range []pgproto3.BackendMessage{
		&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'},
		&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("x"), DataTypeOID: 23}}},
	} {
		var err error
		if first, err = m.Encode(first); err != nil {
			t.Fatal(err)
		}
	}
	row, err := (&pgproto3.DataRow{Values: [][]byte{bytes.Repeat([]byte("x"), 1000)}}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	p := Place{Dial: func(context.Context, string, string) (net.Conn, error) {
		return &recorder{in: io.MultiReader(bytes.NewReader(first), endless{row, &sent})}, nil
	}}
	s := Service{User: "root", Password: "x", Database: "app", Container: "c", Port: 1}
	err = p.overNetwork(t.Context(), &Running{Service: s, Address: "10.87.0.30"}, func(ctx context.Context, c net.Conn) error {
		_, err := askPostgres(ctx, c, s, "SELECT 1")
		return err
	})
	if err == nil || sent > mostOfAll+(64<<10) {
		t.Errorf("%d bytes were read, error %v", sent, err)
	}
}

// endless reads what it has again and again; it gives up when no bound can be
// meant any more.
type endless struct {
	what []byte
	sent *int
}

func (e endless) Read(p []byte) (int, error) {
	if *e.sent > 64<<20 {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) {
		k := copy(p[n:], e.what[(*e.sent+n)%len(e.what):])
		n += k
	}
	*e.sent += n
	return n, nil
}

// TestAServerThatIsLeft: what it sends after that is not waited for.
func TestAServerThatIsLeft(t *testing.T) {
	c := serve(t, postgresServer("right", bytes.Repeat([]byte("x"), mostOfAnAnswer+1)))
	s := Service{Name: "postgres", Container: "postgres-sandbox", Port: 5432, User: "app", Password: "right", Database: "data"}
	if _, err := askPostgres(t.Context(), c, s, "SELECT 1"); err == nil {
		t.Error("an answer beyond the limit was taken")
	}
	closed(t, c)
}

// TestAKeyThatIsTooLong: to use one costs this host, not the server.
func TestAKeyThatIsTooLong(t *testing.T) {
	n := new(big.Int).Lsh(big.NewInt(1), 8*(mostOfAnAnswer/2))
	n.Add(n, big.NewInt(1))
	der, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	w := &mysqlWire{c: &recorder{}}
	err = w.more(mysqlCachingSHA2, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "password", mysqlSalt)
	if err == nil || !strings.Contains(err.Error(), "bits") {
		t.Errorf("error %v", err)
	}
}

// FuzzAnswers: what a hostile server sends is an answer or an error, soon.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("+PONG\r\n"))
	f.Add([]byte("\x04\x00\x00\x00\xff\x15\x04#"))
	f.Add([]byte("\x01\x00\x00\x00\x0a\x02\x00\x00\x01\x01\x04"))
	f.Add([]byte("R\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I"))
	f.Add([]byte("R\x00\x00\x00\x17\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00"))
	var greeting []byte
	record := &recorder{}
	(&mysqlServer{greets: mysqlNativePassword, plugin: mysqlNativePassword}).run(record)
	greeting = append(greeting, record.Bytes()...)
	f.Add(append(greeting, "\x07\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x07\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"...))
	f.Add(append(greeting, "\x2c\x00\x00\x02\xfecaching_sha2_password\x000123456789abcdefghij\x00\x02\x00\x00\x04\x01\x04"...))
	f.Fuzz(func(t *testing.T, answers []byte) {
		s := Service{User: "root", Password: "x", Database: "app", Container: "c", Port: 1}
		for _, k := range kinds {
			c := &recorder{in: bytes.NewReader(answers)}
			if err := k.ask(t.Context(), c, s); err == nil && len(answers) < 7 {
				t.Errorf("%s: %q was taken for an answer", k.name, answers)
			}
		}
	})
}

// recorder is a connection that says what it was given and keeps what it is
// told.
type recorder struct {
	bytes.Buffer
	in io.Reader
}

func (r *recorder) Read(b []byte) (int, error) {
	if r.in == nil {
		return 0, io.EOF
	}
	return r.in.Read(b)
}
func (*recorder) Close() error                     { return nil }
func (*recorder) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*recorder) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }
