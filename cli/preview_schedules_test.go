package cli_test

import (
	"regexp"
	"strings"
)

// schedules previews a ScaleSchedule.
func (h *fleetFixture) schedules() {
	h.t.Helper()
	preview := func(rules string) (code int, out, notes string) {
		h.t.Helper()
		schedule := `{apiVersion: fleet.atoll.dev/v1alpha1, kind: ScaleSchedule, metadata: {name: office, namespace: harbour}, spec: {
  target: {apiVersion: apps/v1, kind: Deployment, name: free}, timeZone: Europe/Berlin, rules: [` + rules + `]}}`
		return run(h.t, "atoll", "preview", "-f", h.file("schedule.yaml", schedule), "--atoll-kubeconfig", h.kubeconfig)
	}
	code, out, notes := preview(`{name: up, schedule: "0 8 * * *", replicas: 9}, {name: down, schedule: "0 20 * * *", replicas: 2}, {name: night, schedule: "@daily", replicas: 0, suspend: true}`)
	want := regexp.MustCompile(`^ScaleSchedule office would change nothing now. The next times of its rules for Deployment free:
RULE +NEXT +SETS
up +\d{4}-\d\d-\d\d 08:00 CES?T +replicas 9
down +\d{4}-\d\d-\d\d 20:00 CES?T +replicas 2
$`)
	if code != 0 || out != "Nothing would move.\n" || !want.MatchString(notes) {
		h.t.Errorf("exit code %d\n%s\n%s", code, out, notes)
	}
	if code, _, notes = preview(`{name: night, schedule: "@daily", replicas: 0, suspend: true}`); code != 0 || notes != "ScaleSchedule office would change nothing: all of its rules are suspended.\n" {
		h.t.Errorf("exit code %d\n%s", code, notes)
	}
	if code, _, notes = preview(`{name: up, schedule: "0 8", replicas: 9}`); code != 1 || !strings.Contains(notes, "spec.rules[0].schedule: Invalid value") {
		h.t.Errorf("exit code %d\n%s", code, notes)
	}
}
