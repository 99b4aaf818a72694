package hostile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/keys"
	"github.com/atoll-dev/atoll/test/programs"
)

// The rights of the attacker, whose certificate playground/keys makes out to "admin", and limits.
const (
	rightsOfEast = "users: [{commonName: admin, prefix: /east/, access: readwrite}]\n"
	largeValue   = 1 << 20
	largeValues  = 48
	watchLimit   = 50
)

// keyspace is an `atoll kv serve` with limits, and a client of it.
type keyspace struct {
	t       *testing.T
	dir     string
	process *child.Process
	client  *clientv3.Client
}

// serve starts a server on a database and connects to it, with TLS if keys are given.
func (k *keyspace) serve(certificates *keys.Keys, flags ...string) {
	k.t.Helper()
	if k.process != nil {
		k.client.Close()
		if err := k.process.Stop(); err != nil {
			k.t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		k.t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	args := append([]string{"kv", "serve", "--datastore", "sqlite://" + filepath.Join(k.dir, "kv.db"), "--listen", address}, flags...)
	if k.process, err = atoll.Run(filepath.Join(k.dir, "kv.log"), args...); err != nil {
		k.t.Fatal(err)
	}
	config := clientv3.Config{Endpoints: []string{"http://" + address}, Logger: zap.NewNop(), Context: context.Background()}
	if certificates != nil {
		config.Endpoints[0] = "https://" + address
		config.TLS = clientTLS(k.t, certificates)
	}
	if k.client, err = clientv3.New(config); err != nil {
		k.t.Fatal(err)
	}
	programs.Eventually(k.t, settle, "the keyspace is served", func(ctx context.Context) error {
		_, err := k.client.Status(ctx, config.Endpoints[0])
		return err
	})
}

func clientTLS(t *testing.T, k *keys.Keys) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(k.AdminCert, k.AdminKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(k.CACert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// TestEtcdClients attacks the keyspace of other clients, and then the memory of its server.
func TestEtcdClients(t *testing.T) {
	k := &keyspace{t: t, dir: t.TempDir()}
	t.Cleanup(func() {
		if k.process != nil {
			k.client.Close()
			_ = k.process.Stop()
		}
	})
	k.serve(nil) // to put the keys of others
	lease, err := k.client.Grant(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.client.Put(t.Context(), "/west/secret", "x", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	certificates, err := keys.LoadOrMake(filepath.Join(k.dir, "pki"), "etcd")
	if err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(k.dir, "access.yaml")
	if err := os.WriteFile(rules, []byte(rightsOfEast), 0o600); err != nil {
		t.Fatal(err)
	}
	k.serve(certificates, "--cert-file", certificates.ServerCert, "--key-file", certificates.ServerKey, "--client-ca-file", certificates.CACert,
		"--client-access", rules, "--max-response-bytes", fmt.Sprint(8*largeValue), "--max-watches-per-connection", fmt.Sprint(watchLimit))
	k.attackOthers(lease.ID)
	k.attackMemory()
}

func (k *keyspace) attackOthers(lease clientv3.LeaseID) {
	ctx, c := k.t.Context(), k.client
	for name, attack := range map[string]func() error{
		"read":     func() error { _, err := c.Get(ctx, "/west/secret"); return err },
		"read all": func() error { _, err := c.Get(ctx, "\x00", clientv3.WithFromKey()); return err },
		"compare": func() error {
			_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Value("/west/secret"), "=", "x")).Then(clientv3.OpPut("/east/guess", "right")).Commit()
			return err
		},
		"change":  func() error { _, err := c.Put(ctx, "/west/secret", "y"); return err },
		"delete":  func() error { _, err := c.Delete(ctx, "/", clientv3.WithPrefix()); return err },
		"revoke":  func() error { _, err := c.Revoke(ctx, lease); return err },
		"attach":  func() error { _, err := c.Put(ctx, "/east/mine", "", clientv3.WithLease(lease)); return err },
		"compact": func() error { _, err := c.Compact(ctx, 2); return err },
		"watch": func() error {
			w := <-c.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(1))
			return w.Err()
		},
	} {
		if err := attack(); !errors.Is(err, rpctypes.ErrPermissionDenied) && !strings.Contains(fmt.Sprint(err), "etcdserver: permission denied") {
			k.t.Errorf("%s: %v, want permission denied", name, err)
		}
	}
}

// attackMemory reads large answers and opens watches, all at the same time.
func (k *keyspace) attackMemory() {
	ctx := k.t.Context()
	value := strings.Repeat("x", largeValue)
	for i := range largeValues {
		if _, err := k.client.Put(ctx, fmt.Sprintf("/east/%02d", i), value); err != nil {
			k.t.Fatal(err)
		}
	}
	s := &stage{server: &atoll.Server{Process: k.process}}
	if err := s.resetPeak(); err != nil {
		k.t.Fatal(err)
	}
	before, err := s.memory("VmRSS")
	if err != nil {
		k.t.Fatal(err)
	}
	var reading sync.WaitGroup
	for range 20 {
		reading.Go(func() {
			if _, err := k.client.Get(ctx, "/east/", clientv3.WithPrefix()); err == nil || !strings.Contains(err.Error(), "--max-response-bytes") {
				k.t.Errorf("read %d MiB: %v", largeValues, err)
			}
		})
	}
	reading.Wait()
	for i := range watchLimit + 1 {
		w := <-k.client.Watch(ctx, "/east/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if refused := w.Err() != nil; refused != (i == watchLimit) {
			k.t.Fatalf("watch %d: %v", i, w.Err())
		}
	}
	peak, err := s.memory("VmHWM")
	if err != nil {
		k.t.Fatal(err)
	}
	// 20 answers of 8 MiB until they are refused, and what Go has not freed yet. Complete ones would be 960 MiB, and as much to encode
	// them.
	if grown := peak - before; grown > 500<<20 {
		k.t.Errorf("the attack took %d MiB", grown>>20)
	}
	if _, err := k.client.Put(ctx, "/east/after", ""); err != nil {
		k.t.Errorf("after the attack: %v", err)
	}
}
