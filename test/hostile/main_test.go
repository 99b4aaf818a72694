// Package hostile attacks a real server of Atoll: as the owner of a member cluster, as the author of a provider, as a tenant, an
// editor of infrastructure in one namespace, and as an etcd client. Each attack is refused with the stated answer, and others notice nothing.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

// settle is how long the server may take on a busy machine.
const settle = 2 * time.Minute

func TestMain(m *testing.M) {
	programs.Main(system.Roles())
	status := m.Run()
	shared.close()
	tenants.close()
	providers.Drop()
	os.Exit(status)
}

// stage is the server that the tests share. They run one after the other, because they measure its memory.
type stage struct {
	once   sync.Once
	err    error
	dir    string
	server *atoll.Server
	admin  *rest.Config
	api    dynamic.Interface
}

var shared = &stage{}

// attacked returns the server, started by the first test.
func attacked(t *testing.T) *stage {
	t.Helper()
	shared.once.Do(func() { shared.err = shared.start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared
}

func (s *stage) start(flags ...string) (err error) {
	if s.dir, err = os.MkdirTemp("", "atoll-hostile-"); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), settle)
	defer stop()
	if s.server, err = atoll.Start(ctx, atoll.Config{Dir: filepath.Join(s.dir, "atoll"), LogFile: filepath.Join(s.dir, "atoll.log"), Flags: flags}); err != nil {
		return err
	}
	if s.admin, err = clientcmd.BuildConfigFromFlags("", s.server.Kubeconfig); err != nil {
		return err
	}
	s.api, err = dynamic.NewForConfig(s.admin)
	return err
}

func (s *stage) close() {
	if s.server != nil {
		_ = s.server.Stop()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// memory returns a figure of the server's memory in bytes: VmRSS is the present one, VmHWM the highest since resetPeak.
func (s *stage) memory(figure string) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.server.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if value, found := strings.CutPrefix(line, figure+":"); found {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no " + figure)
}

// resetPeak sets VmHWM to the present memory.
func (s *stage) resetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.server.PID()), []byte("5"), 0o600)
}
