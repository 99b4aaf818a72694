package apply_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/test/programs"
)

// policy returns a SyncPolicy, without a namespace.
func policy(spec string) string {
	return fmt.Sprintf("{apiVersion: infra.atoll.dev/v1alpha1, kind: SyncPolicy, metadata: {name: default}, spec: %s}\n---\n", spec)
}

// waitFile waits until a file of the demo provider has the expected content.
func (w *environment) waitFile(t *testing.T, limit time.Duration, name string, want func() string) {
	t.Helper()
	programs.Eventually(t, limit, name+" has the expected content", func(context.Context) error {
		got, err := os.ReadFile(filepath.Join(w.world, "files", name))
		if err == nil && string(got) != want() {
			return fmt.Errorf("content %q", got)
		}
		return err
	})
}

// TestSyncPolicies: each namespace's policy decides whether changes are applied automatically, how many approvals they
// need, and when.
func TestSyncPolicies(t *testing.T) {
	t.Parallel()
	w := sharedServer(t)
	manual(t, w.namespace(t, "manual"))
	t.Run("Auto", func(t *testing.T) { t.Parallel(); auto(t, w.namespace(t, "auto")) })
	t.Run("Quorum", func(t *testing.T) { t.Parallel(); quorum(t, w.namespace(t, "quorum")) })
	t.Run("Windows", func(t *testing.T) { t.Parallel(); windows(t, w.namespace(t, "windows")) })
	t.Run("Mistakes", func(t *testing.T) { t.Parallel(); invalidPolicies(t, w.namespace(t, "mistakes")) })
}

// manual checks after the other subtests that nothing was applied automatically in the meantime.
func manual(t *testing.T, w *environment) {
	w.apply(t, policy(`{mode: Manual}`)+network("main", "10.1.0.0/16"))
	t.Cleanup(func() {
		if made := w.countResources(t); made != 0 {
			t.Errorf("%d resources were created in a namespace with mode Manual", made)
		}
	})
}

func auto(t *testing.T, w *environment) {
	w.apply(t, policy(`{mode: Auto, driftInterval: 1m, approval: {auto: [
		{name: small, expression: plan.status.summary.delete == 0 && plan.status.summary.replace == 0 && plan.status.summary.update <= 20}]}}`))
	id := func() string {
		return w.kubectl(t, "get", "network.demo.providers.atoll.dev", "main", "-o", "jsonpath={.status.attributes.id}")
	}
	w.apply(t, network("main", "10.1.0.0/16")+file("owner", `${demo_network["main"].id}`))
	w.waitFile(t, time.Minute, "owner", id)
	before := id()
	programs.Eventually(t, time.Minute, "the apply names the rule that approved it", func(ctx context.Context) error {
		by, err := w.tryKubectl(ctx, "", "get", "applies", "-o", `jsonpath={.items[*].status.approvedBy}`)
		if err == nil && !strings.Contains(by, "SyncPolicy default: small") {
			return fmt.Errorf("approved by %s", by)
		}
		return err
	})

	t.Log("a change that no rule approves waits for an approval")
	w.apply(t, network("main", "10.4.0.0/16"))
	var plan string
	programs.Eventually(t, time.Minute, "a plan replaces the network", func(ctx context.Context) error {
		out, err := w.tryKubectl(ctx, "", "get", "plans", "-o", `jsonpath={range .items[?(@.status.summary.replace==1)]}{.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Approved")].status}{"\n"}{end}`)
		name, rest, _ := strings.Cut(strings.TrimSpace(out), " ")
		if err == nil && rest != "Planned False" {
			return fmt.Errorf("plans: %q", out)
		}
		plan = name
		return err
	})
	if got := w.file(t, "owner"); got != before {
		t.Fatalf("owner is %q without an approval", got)
	}
	w.mustAtoll(t, "approve", plan, "--yes")
	programs.Eventually(t, time.Minute, "the network is replaced", func(context.Context) error {
		if id() == before {
			return errors.New("its ID has not changed")
		}
		return nil
	})
	w.waitFile(t, time.Minute, "owner", id)

	t.Log("drift is corrected")
	if err := os.WriteFile(filepath.Join(w.world, "files", "owner"), []byte("by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.waitFile(t, 3*time.Minute, "owner", id)
}

func quorum(t *testing.T, w *environment) {
	w.apply(t, policy(`{approval: {required: 2, allowAuthor: false}}`))
	alice := w.as(t, "quorum", "alice", "atoll:infra-editor", "atoll:infra-approver")
	bob := w.as(t, "quorum", "bob", "atoll:infra-approver")
	carol := w.as(t, "quorum", "carol", "atoll:infra-approver")
	programs.Eventually(t, time.Minute, "alice may write", func(ctx context.Context) error {
		_, err := alice.tryKubectl(ctx, file("a", "content"), "apply", "-f", "-")
		return err
	})
	plan := alice.createPlan(t)
	alice.mustAtoll(t, "approve", plan, "--yes")
	bob.mustAtoll(t, "approve", plan, "--yes")
	bob.mustAtoll(t, "approve", plan, "--yes")
	alice.atoll(t, "apply", plan, "--wait=false").expect(t, 0, "apply.infra.atoll.dev/apply-", "To see its progress")
	apply := w.kubectl(t, "get", "applies", "-o", "name")
	w.waitField(t, apply, `.status.conditions[?(@.type=="Complete")].reason`, "NotApproved")
	w.waitField(t, "plan/"+plan, `.status.conditions[?(@.type=="Approved")].message`, "1 of 2")
	alice.atoll(t, "show", apply).expect(t, 0, "Waiting: ")
	if made := w.countResources(t); made != 0 {
		t.Fatalf("%d resources were created with one approval of two", made)
	}
	carol.mustAtoll(t, "approve", plan, "--yes")
	w.waitField(t, apply, ".status.phase", "Succeeded")
	if by := w.kubectl(t, "get", apply, "-o", "jsonpath={.status.approvedBy}"); by != `["bob","carol"]` {
		t.Fatalf("approved by %s", by)
	}

	t.Log("a withdrawn approval does not count")
	w.apply(t, file("a", "other"))
	plan = alice.createPlan(t)
	bob.mustAtoll(t, "approve", plan, "--yes")
	carol.mustAtoll(t, "approve", plan, "--yes")
	w.waitField(t, "plan/"+plan, `.status.conditions[?(@.type=="Approved")].status`, "True")
	all := w.kubectl(t, "get", "approvals", "-o", `jsonpath={.items[?(@.spec.approver.username=="carol")].metadata.name}`)
	for name := range strings.FieldsSeq(all) {
		if strings.HasPrefix(name, plan) {
			carol.kubectl(t, "delete", "approval", name)
		}
	}
	w.waitField(t, "plan/"+plan, `.status.conditions[?(@.type=="Approved")].status`, "False")
}

func windows(t *testing.T, w *environment) {
	const spec = `{mode: Auto, approval: {required: 0}, windows: [{schedule: "%s", duration: %s}]}`
	now := time.Now().UTC()
	later := now.Add(72 * time.Hour)
	w.apply(t, policy(fmt.Sprintf(spec, fmt.Sprintf("0 0 %d %d *", later.Day(), later.Month()), "1h"))+file("a", "content"))
	var apply string
	programs.Eventually(t, time.Minute, "an apply waits", func(ctx context.Context) (err error) {
		if apply, err = w.tryKubectl(ctx, "", "get", "applies", "-o", "name"); err == nil && apply == "" {
			return fmt.Errorf("no apply")
		}
		return err
	})
	w.waitField(t, apply, `.status.conditions[?(@.type=="Complete")].reason`, "OutsideWindow")
	w.waitField(t, apply, `.status.conditions[?(@.type=="Complete")].message`, later.Format("2006-01-02")+"T00:00:00Z")
	if made := w.countResources(t); made != 0 {
		t.Fatalf("%d resources were created while no window was open", made)
	}
	w.apply(t, policy(fmt.Sprintf(spec, "* * * * *", "5m")))
	w.waitFile(t, time.Minute, "a", func() string { return "content" })
}

// invalidPolicies: an invalid policy approves nothing automatically, and reports why.
func invalidPolicies(t *testing.T, w *environment) {
	for _, one := range []struct{ spec, want string }{
		{`{mode: Auto, approval: {auto: [{name: bad, expression: "plan.status ++"}]}}`, "spec.approval.auto[0].expression (bad)"},
		{`{mode: Auto, windows: [{schedule: "every day", duration: 1h}]}`, "spec.windows[0].schedule"},
		{`{mode: Auto, windows: [{schedule: "0 9 * * 1-5", timeZone: Nowhere/None, duration: 1h}]}`, "spec.windows[0].timeZone"},
	} {
		w.apply(t, policy(one.spec))
		w.waitField(t, "syncpolicy/default", `.status.conditions[?(@.type=="Valid")].message`, one.want)
	}
	for spec, want := range map[string]string{
		`{mode: Perhaps}`:            "supported values",
		`{appliesTo: []}`:            "appliesTo",
		`{approval: {required: 17}}`: "less than or equal to 16",
		`{approval: {auto: [{name: none, expression: ""}]}}`: "expression",
	} {
		w.refused(t, policy(spec), []string{"apply", "-f", "-"}, want)
	}
}
