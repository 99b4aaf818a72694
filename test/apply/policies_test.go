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

// policy is a SyncPolicy of the namespace that its user is in.
func policy(spec string) string {
	return fmt.Sprintf("{apiVersion: infra.atoll.dev/v1alpha1, kind: SyncPolicy, metadata: {name: default}, spec: %s}\n---\n", spec)
}

// comes waits for a file of the demo provider to be as it should.
func (w *works) comes(t *testing.T, limit time.Duration, name string, should func() string) {
	t.Helper()
	programs.Eventually(t, limit, name+" is as it should be", func(context.Context) error {
		got, err := os.ReadFile(filepath.Join(w.world, "files", name))
		if err == nil && string(got) != should() {
			return fmt.Errorf("it is %q", got)
		}
		return err
	})
}

// Whether anything is done without a person, by how many persons, and when, is each namespace's choice.
func TestSyncPolicies(t *testing.T) {
	t.Parallel()
	w := sharedServer(t)
	manual(t, w.room(t, "manual"))
	t.Run("Auto", func(t *testing.T) { t.Parallel(); auto(t, w.room(t, "auto")) })
	t.Run("Quorum", func(t *testing.T) { t.Parallel(); quorum(t, w.room(t, "quorum")) })
	t.Run("Windows", func(t *testing.T) { t.Parallel(); windows(t, w.room(t, "windows")) })
	t.Run("Mistakes", func(t *testing.T) { t.Parallel(); mistakenPolicies(t, w.room(t, "mistakes")) })
}

// manual looks in the end whether anything was done by itself: there is as long for that as the others take.
func manual(t *testing.T, w *works) {
	w.apply(t, policy(`{mode: Manual}`)+network("main", "10.1.0.0/16"))
	t.Cleanup(func() {
		if made := w.made(t); made != 0 {
			t.Errorf("%d things were made in a namespace that is Manual", made)
		}
	})
}

func auto(t *testing.T, w *works) {
	w.apply(t, policy(`{mode: Auto, driftInterval: 1m, approval: {auto: [
		{name: small, expression: plan.status.summary.delete == 0 && plan.status.summary.replace == 0 && plan.status.summary.update <= 20}]}}`))
	id := func() string {
		return w.kubectl(t, "get", "network.demo.providers.atoll.dev", "main", "-o", "jsonpath={.status.attributes.id}")
	}
	w.apply(t, network("main", "10.1.0.0/16")+file("owner", `${demo_network["main"].id}`))
	w.comes(t, time.Minute, "owner", id)
	before := id()
	programs.Eventually(t, time.Minute, "the apply says whose choice it was", func(ctx context.Context) error {
		by, err := w.tryKubectl(ctx, "", "get", "applies", "-o", `jsonpath={.items[*].status.approvedBy}`)
		if err == nil && !strings.Contains(by, "SyncPolicy default: small") {
			return fmt.Errorf("it was approved by %s", by)
		}
		return err
	})

	t.Log("what the rule does not let through waits for a person")
	w.apply(t, network("main", "10.4.0.0/16"))
	var plan string
	programs.Eventually(t, time.Minute, "there is a plan to replace it", func(ctx context.Context) error {
		out, err := w.tryKubectl(ctx, "", "get", "plans", "-o", `jsonpath={range .items[?(@.status.summary.replace==1)]}{.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Approved")].status}{"\n"}{end}`)
		name, rest, _ := strings.Cut(strings.TrimSpace(out), " ")
		if err == nil && rest != "Planned False" {
			return fmt.Errorf("there are %q", out)
		}
		plan = name
		return err
	})
	if got := w.file(t, "owner"); got != before {
		t.Fatalf("owner is %q, and nobody has approved of that", got)
	}
	w.does(t, "approve", plan, "--yes")
	programs.Eventually(t, time.Minute, "it is replaced", func(context.Context) error {
		if id() == before {
			return errors.New("it has the ID that it had")
		}
		return nil
	})
	w.comes(t, time.Minute, "owner", id)

	t.Log("drift is put right")
	if err := os.WriteFile(filepath.Join(w.world, "files", "owner"), []byte("by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.comes(t, 3*time.Minute, "owner", id)
}

func quorum(t *testing.T, w *works) {
	w.apply(t, policy(`{approval: {required: 2, allowAuthor: false}}`))
	alice := w.as(t, "quorum", "alice", "atoll:infra-editor", "atoll:infra-approver")
	bob := w.as(t, "quorum", "bob", "atoll:infra-approver")
	carol := w.as(t, "quorum", "carol", "atoll:infra-approver")
	programs.Eventually(t, time.Minute, "alice may write", func(ctx context.Context) error {
		_, err := alice.tryKubectl(ctx, file("a", "content"), "apply", "-f", "-")
		return err
	})
	plan := alice.plans(t)
	alice.does(t, "approve", plan, "--yes")
	bob.does(t, "approve", plan, "--yes")
	bob.does(t, "approve", plan, "--yes")
	alice.atoll(t, "apply", plan, "--wait=false").expect(t, 0, "apply.infra.atoll.dev/apply-", "To see its progress")
	apply := w.kubectl(t, "get", "applies", "-o", "name")
	w.status(t, apply, `.status.conditions[?(@.type=="Complete")].reason`, "NotApproved")
	w.status(t, "plan/"+plan, `.status.conditions[?(@.type=="Approved")].message`, "1 of 2")
	alice.atoll(t, "show", apply).expect(t, 0, "Waiting: ")
	if made := w.made(t); made != 0 {
		t.Fatalf("%d things were made with one approval of two", made)
	}
	carol.does(t, "approve", plan, "--yes")
	w.status(t, apply, ".status.phase", "Succeeded")
	if by := w.kubectl(t, "get", apply, "-o", "jsonpath={.status.approvedBy}"); by != `["bob","carol"]` {
		t.Fatalf("it was approved by %s", by)
	}

	t.Log("an approval that is taken back counts no more")
	w.apply(t, file("a", "other"))
	plan = alice.plans(t)
	bob.does(t, "approve", plan, "--yes")
	carol.does(t, "approve", plan, "--yes")
	w.status(t, "plan/"+plan, `.status.conditions[?(@.type=="Approved")].status`, "True")
	all := w.kubectl(t, "get", "approvals", "-o", `jsonpath={.items[?(@.spec.approver.username=="carol")].metadata.name}`)
	for name := range strings.FieldsSeq(all) {
		if strings.HasPrefix(name, plan) {
			carol.kubectl(t, "delete", "approval", name)
		}
	}
	w.status(t, "plan/"+plan, `.status.conditions[?(@.type=="Approved")].status`, "False")
}

func windows(t *testing.T, w *works) {
	const spec = `{mode: Auto, approval: {required: 0}, windows: [{schedule: "%s", duration: %s}]}`
	now := time.Now().UTC()
	later := now.Add(72 * time.Hour)
	w.apply(t, policy(fmt.Sprintf(spec, fmt.Sprintf("0 0 %d %d *", later.Day(), later.Month()), "1h"))+file("a", "content"))
	var apply string
	programs.Eventually(t, time.Minute, "an apply waits", func(ctx context.Context) (err error) {
		if apply, err = w.tryKubectl(ctx, "", "get", "applies", "-o", "name"); err == nil && apply == "" {
			return fmt.Errorf("there is none")
		}
		return err
	})
	w.status(t, apply, `.status.conditions[?(@.type=="Complete")].reason`, "OutsideWindow")
	w.status(t, apply, `.status.conditions[?(@.type=="Complete")].message`, later.Format("2006-01-02")+"T00:00:00Z")
	if made := w.made(t); made != 0 {
		t.Fatalf("%d things were made while no window was open", made)
	}
	w.apply(t, policy(fmt.Sprintf(spec, "* * * * *", "5m")))
	w.comes(t, time.Minute, "a", func() string { return "content" })
}

// A policy that cannot be followed lets nothing through by itself, and says why.
func mistakenPolicies(t *testing.T, w *works) {
	for _, one := range []struct{ spec, want string }{
		{`{mode: Auto, approval: {auto: [{name: bad, expression: "plan.status ++"}]}}`, "spec.approval.auto[0].expression (bad)"},
		{`{mode: Auto, windows: [{schedule: "every day", duration: 1h}]}`, "spec.windows[0].schedule"},
		{`{mode: Auto, windows: [{schedule: "0 9 * * 1-5", timeZone: Nowhere/None, duration: 1h}]}`, "spec.windows[0].timeZone"},
	} {
		w.apply(t, policy(one.spec))
		w.status(t, "syncpolicy/default", `.status.conditions[?(@.type=="Valid")].message`, one.want)
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
