package moving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/fleet"
)

// killLeader ends the leading server like a crash, and returns its index. Tests then talk to the other one.
func (s *stage) killLeader(t *testing.T) int {
	t.Helper()
	leader := s.leader(t)
	s.use(1 - leader)
	if !s.KillServer(leader) {
		t.Fatalf("%s does not run", s.Servers()[leader])
	}
	return leader
}

// leader returns the index of the server that leads the fleet.
func (s *stage) leader(t *testing.T) (index int) {
	t.Helper()
	eventually(t, "a server leads", func(ctx context.Context) error {
		lease, err := s.client(t).CoordinationV1().Leases(fleet.LeaseNamespace).Get(ctx, fleet.LeaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return errors.New("the Lease has no holder")
		}
		// A server writes its identity into its log when it begins to lead.
		for i, name := range s.Servers() {
			log, err := os.ReadFile(filepath.Join(s.dir, "logs", name+".log"))
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, "started leading") && strings.Contains(line, *lease.Spec.HolderIdentity) {
					index = i
					return nil
				}
			}
		}
		return fmt.Errorf("%s holds the Lease, and no log mentions it", *lease.Spec.HolderIdentity)
	})
	return index
}

// restart starts a server again.
func (s *stage) restart(t *testing.T, server int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.StartServer(ctx, server); err != nil {
		t.Fatal(err)
	}
}
