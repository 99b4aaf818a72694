package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
)

// kvServer is an `atoll kv serve` with its own database.
type kvServer struct {
	kv.Keyspace
	datastore, endpoint string
}

// output collects a command's output for a concurrent reader.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start runs a command until the test ends or stop is called. stop returns the
// command's error.
func start(t *testing.T, args ...string) (out *output, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	out = &output{}
	cmd := cli.New("atoll")
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(out)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { stop() })
	return out, stop
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func serveKV(t *testing.T, flags ...string) *kvServer {
	t.Helper()
	s := &kvServer{datastore: "sqlite://" + filepath.Join(t.TempDir(), "kv.db")}
	out, _ := start(t, append([]string{"kv", "serve", "--datastore", s.datastore, "--listen", "127.0.0.1:0"}, flags...)...)
	address := regexp.MustCompile(`serves etcd clients on (\S+)`)
	eventually(t, "kv serve is ready", func() bool {
		found := address.FindStringSubmatch(out.String())
		if found != nil {
			s.endpoint = "http://" + found[1]
		}
		return found != nil
	})
	client, err := etcd.Dial(t.Context(), s.endpoint, etcd.ClientTLS{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s.Keyspace = etcd.Remote(client)
	return s
}

func (s *kvServer) put(t *testing.T, key, value string) {
	t.Helper()
	if _, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: []byte(value)}}}}); err != nil {
		t.Fatal(err)
	}
}

func (s *kvServer) del(t *testing.T, key string) {
	t.Helper()
	if _, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte(key)}}}}}); err != nil {
		t.Fatal(err)
	}
}

// mustSucceed runs a command that must succeed, and returns its output.
func mustSucceed(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := run(t, append([]string{"atoll", "kv"}, args...)...)
	if code != 0 {
		t.Fatalf("atoll kv %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// mustFail runs a command that must fail with an error that contains want.
func mustFail(t *testing.T, want string, args ...string) {
	t.Helper()
	code, stdout, stderr := run(t, append([]string{"atoll", "kv"}, args...)...)
	if code != 1 || !strings.Contains(stderr, want) {
		t.Errorf("atoll kv %s: exit code %d, want 1 and %q\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
}

func mustContain(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s lacks %q:\n%s", what, p, got)
		}
	}
}

// Reading works while a server has the database open, and through the server.
func TestReadKeyspaceInUse(t *testing.T) {
	s := serveKV(t)
	s.put(t, "a", "secret")
	s.put(t, "a", "secret2")
	s.put(t, "b\n", "\xff")
	s.del(t, "b\n")
	s.put(t, "c", "3")

	mustContain(t, "status", mustSucceed(t, "status", "--datastore", s.datastore), "default    6          0           2      3", "last commit")
	var status struct {
		Keyspaces []struct{ Revision, Keys int64 }
	}
	if err := json.Unmarshal([]byte(mustSucceed(t, "status", "--endpoint", s.endpoint, "-o", "json")), &status); err != nil ||
		len(status.Keyspaces) != 1 || status.Keyspaces[0].Revision != 6 || status.Keyspaces[0].Keys != 2 {
		t.Errorf("status: %+v, %v", status, err)
	}
	for _, where := range [][]string{{"--datastore", s.datastore}, {"--endpoint", s.endpoint}} {
		dump := func(args ...string) string {
			return mustSucceed(t, append(append([]string{"dump"}, where...), args...)...)
		}
		plain := dump()
		mustContain(t, "dump", plain, "3\t2\t2\t\t7\ta\n", "6\t6\t1\t\t1\tc\n")
		if strings.Contains(plain, "secret") {
			t.Error("the dump contains values without --values")
		}
		mustContain(t, "dump", dump("--values", "raw", "--revision", "4", "--prefix", "b"), `"\xff"`, `"b\n"`)
		mustContain(t, "dump", dump("--values", "none", "-o", "json"), `{"key":"a","modRevision":3,"createRevision":2,"version":2}`)
		mustContain(t, "history", dump("--history", "--values", "base64", "-o", "json"),
			`{"type":"PUT","key":"a","modRevision":2,"createRevision":2,"version":1,"valueBase64":"c2VjcmV0"}`, `{"type":"DELETE","key":"b\n","modRevision":5}`)
		if lines := strings.Count(dump("--history", "--revision", "3"), "\n"); lines != 3 {
			t.Errorf("history up to revision 3 has %d lines, want a header and 2", lines)
		}
	}
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", s.datastore), "no findings")

	mustFail(t, `no keyspace "x": it has "default"`, "dump", "--datastore", s.datastore, "--keyspace", "x")
	mustFail(t, "future", "dump", "--datastore", s.datastore, "--revision", "99")
	mustFail(t, "with --endpoint", "compact", "--datastore", s.datastore, "--revision", "4")
	mustContain(t, "dry run", mustSucceed(t, "compact", "--datastore", s.datastore, "--revision", "6", "--dry-run"), "drops 3 past versions")
	mustContain(t, "compact", mustSucceed(t, "compact", "--endpoint", s.endpoint, "--keep-revisions", "1", "--physical"), "compacted at revision 5")
	mustContain(t, "compact", mustSucceed(t, "compact", "--endpoint", s.endpoint, "--keep-revisions", "1"), "nothing to compact")
	mustFail(t, "already compacted at 5", "compact", "--endpoint", s.endpoint, "--revision", "2")
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", s.datastore), "no findings")
}

func TestCompactUnusedDatabase(t *testing.T) {
	s := serveKV(t)
	for i := range 20 {
		s.put(t, "a", fmt.Sprint(i))
	}
	copied := "sqlite://" + filepath.Join(t.TempDir(), "copy.db")
	mustSucceed(t, "copy", "--from", s.endpoint, "--to", copied, "--bump", "-1")
	mustSucceed(t, "copy", "--from", s.datastore, "--to", copied, "--mirror")
	s.put(t, "a", "later")
	mustContain(t, "mirror", mustSucceed(t, "copy", "--from", s.datastore, "--to", copied, "--mirror"), "1 put")
	mustContain(t, "compact", mustSucceed(t, "compact", "--datastore", copied, "--keep-revisions", "0", "--physical"), "compacted at revision 3")
	mustContain(t, "status", mustSucceed(t, "status", "--datastore", copied), "default    3          3           1      0")
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", copied), "no findings")
}

func TestCopyRoundTrip(t *testing.T) {
	from, back := serveKV(t), serveKV(t)
	for i := range 50 {
		from.put(t, fmt.Sprintf("key%02d", i), strings.Repeat("v", i))
	}
	middle := "sqlite://" + filepath.Join(t.TempDir(), "middle.db")
	mustContain(t, "dry run", mustSucceed(t, "copy", "--from", from.endpoint, "--to", middle, "--dry-run"), "would copy 50 keys", "50 to put")
	out := mustSucceed(t, "copy", "--from", from.endpoint, "--to", middle)
	mustContain(t, "copy", out, "copied 50 keys", "resource versions differ", "verified: 50 keys are equal", "revision 10000000")
	mustFail(t, "--mirror", "copy", "--from", from.endpoint, "--to", middle)
	from.put(t, "new", "1")
	mustFail(t, "1 keys differ", "copy", "--from", from.endpoint, "--to", middle, "--verify-only")
	mustContain(t, "mirror", mustSucceed(t, "copy", "--from", from.endpoint, "--to", middle, "--mirror"), "1 put, 50 already equal")
	mustSucceed(t, "copy", "--from", from.endpoint, "--to", middle, "--verify-only")
	mustContain(t, "copy back", mustSucceed(t, "copy", "--from", middle, "--to", back.endpoint), "verified: 51 keys")
	mustFail(t, "same keyspace", "copy", "--from", middle, "--to", middle)
	mustFail(t, "--to etcd://", "copy", "--from", middle, "--to", from.datastore, "--merge")
}

func TestCopyFollows(t *testing.T) {
	for _, live := range []string{"endpoint", "datastore"} {
		from, to := serveKV(t), serveKV(t)
		from.put(t, "a", "1")
		source := from.endpoint
		if live == "datastore" {
			source = from.datastore
		}
		out, stop := start(t, "kv", "copy", "--from", source, "--to", to.endpoint, "--follow")
		eventually(t, "the copy follows", func() bool { return strings.Contains(out.String(), "following from revision 2") })
		from.put(t, "b", "2")
		from.del(t, "a")
		eventually(t, "changes arrive", func() bool {
			res, err := to.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
			if err != nil {
				t.Fatal(err)
			}
			return len(res.KVs) == 1 && string(res.KVs[0].Key) == "b"
		})
		if err := stop(); err != nil {
			t.Errorf("after the interrupt: %v", err)
		}
		mustContain(t, "follow", out.String(), "everything up to revision 4")
	}
}

func TestBackupAndRestore(t *testing.T) {
	s := serveKV(t)
	for i := range 30 {
		s.put(t, fmt.Sprint("key", i), strings.Repeat("v", 100*i))
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	mustContain(t, "backup", mustSucceed(t, "backup", "--datastore", s.datastore, "--to", file), `keyspace "default" backed up at revision 31: 30 keys`)
	mustFail(t, "--overwrite", "backup", "--datastore", s.datastore, "--to", file)
	mustContain(t, "backup", mustSucceed(t, "backup", "--endpoint", s.endpoint, "--to", file, "--overwrite", "--compress", "none"), "30 keys")

	restored := "sqlite://" + filepath.Join(dir, "new.db")
	mustContain(t, "dry run", mustSucceed(t, "restore", "--from", file, "--to", restored, "--dry-run"), "is valid", "30 keys")
	if _, err := os.Stat(filepath.Join(dir, "new.db")); err == nil {
		t.Error("the dry run created a database")
	}
	mustContain(t, "restore", mustSucceed(t, "restore", "--from", file, "--to", restored), "30 put", "verified: 30 keys")
	mustContain(t, "status", mustSucceed(t, "status", "--datastore", restored), "default    1000000032   1000000031   30")
	mustFail(t, "already has 30 keys", "restore", "--from", file, "--to", restored)
	mustContain(t, "restore again", mustSucceed(t, "restore", "--from", file, "--to", restored, "--mirror"), "0 put, 30 already equal")
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", restored), "no findings")

	other := serveKV(t)
	mustFail(t, "would go back", "restore", "--from", file, "--to", other.endpoint)
	mustContain(t, "restore", mustSucceed(t, "restore", "--from", file, "--to", other.endpoint, "--bump", "-1"), "verified: 30 keys")

	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(5000, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	mustFail(t, "damaged", "restore", "--from", file, "--to", "sqlite://"+filepath.Join(dir, "never.db"))
}

// Recovery keeps the existing data, and continues beyond every revision that a client
// may know.
func TestRecover(t *testing.T) {
	s := serveKV(t)
	s.put(t, "a", "1")
	mustFail(t, "in use", "recover", "--datastore", s.datastore, "--all")
	copied := "sqlite://" + filepath.Join(t.TempDir(), "copy.db")
	mustSucceed(t, "copy", "--from", s.endpoint, "--to", copied, "--bump", "-1")
	t.Setenv(cli.DatastoreVariable, copied)
	mustFail(t, "--all", "recover")
	mustFail(t, "mutually exclusive", "recover", "--all", "--keyspace", "default")
	mustFail(t, "out of range", "recover", "--all", "--bump", "0")
	mustFail(t, `no keyspace "none"`, "recover", "--keyspace", "none")
	mustContain(t, "dry run", mustSucceed(t, "recover", "--all", "--dry-run"), "default    2          0           1      1000000002", "nothing was changed")
	mustContain(t, "recover", mustSucceed(t, "recover", "--keyspace", "default"), `keyspace "default" recovered at revision 1000000002`)
	mustContain(t, "status", mustSucceed(t, "status"), "default    1000000002   1000000002   1")
	mustContain(t, "check", mustSucceed(t, "check"), "no findings")
	mustContain(t, "dump", mustSucceed(t, "dump"), "a")
	mustContain(t, "backup", mustSucceed(t, "backup", "--to", filepath.Join(t.TempDir(), "backup")), "1 keys")
	mustContain(t, "compact", mustSucceed(t, "compact", "--keep-revisions", "0"), "nothing to compact")
}

// TestRecoverDamagedFile: a server refuses a file whose log is damaged, and goes on with it after kv recover.
func TestRecoverDamagedFile(t *testing.T) {
	s := serveKV(t)
	for i := range 60 {
		s.put(t, fmt.Sprint("key", i%7), strings.Repeat("x", i*50))
	}
	from, copied := strings.TrimPrefix(s.datastore, "sqlite://"), filepath.Join(t.TempDir(), "copy.db")
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(from + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if suffix != "" {
			copy(content[len(content)/2:], bytes.Repeat([]byte("damaged "), 512))
		}
		if err := os.WriteFile(copied+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(cli.DatastoreVariable, "sqlite://"+copied)
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"check"}, {"backup", "--to", filepath.Join(t.TempDir(), "backup")}} {
		mustFail(t, "atoll kv recover --datastore sqlite://"+copied+" --all", args...)
	}
	mustFail(t, "use --all", "recover", "--keyspace", "default")
	mustContain(t, "dry run", mustSucceed(t, "recover", "--all", "--dry-run"), "is damaged at offset", "LOST UP TO", " 61\n", "nothing was changed")
	mustFail(t, "is damaged", "check")
	mustContain(t, "recover", mustSucceed(t, "recover", "--all"), "kept the damaged file as "+copied+".damaged-", `keyspace "default" recovered at revision 10000000`)
	mustContain(t, "check", mustSucceed(t, "check"), "no findings")
	mustContain(t, "recover again", mustSucceed(t, "recover", "--all"), `keyspace "default" recovered at revision 20000000`)
}

// TestProgressInterval: an idle watch that requested progress gets it at the given interval.
func TestProgressInterval(t *testing.T) {
	t.Parallel()
	s := serveKV(t, "--watch-progress-notify-interval", "100ms")
	client, err := etcd.Dial(t.Context(), s.endpoint, etcd.ClientTLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the default interval is ten
	defer cancel()
	for response := range client.Watch(ctx, "a", clientv3.WithProgressNotify()) {
		if response.IsProgressNotify() {
			return
		}
	}
	t.Error("no progress notification within a minute")
}
