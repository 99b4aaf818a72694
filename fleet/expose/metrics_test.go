package expose

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestSharedAPIsAreCounted(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	want := "# HELP atoll_fleet_shared_apis SharedAPIs by member and reason, which is Exposed if the member serves all groups.\n" +
		"# TYPE atoll_fleet_shared_apis gauge\natoll_fleet_shared_apis{cluster=\"east\",reason=\"" + v1alpha1.ExposureExposed + "\"} 1\n"
	s.eventually("it is counted", func() bool { return testutil.CollectAndCompare(s.metrics, strings.NewReader(want)) == nil })
	s.stop()
	if n := testutil.CollectAndCount(s.metrics); n != 0 {
		t.Errorf("%d series after this server stopped leading", n)
	}
}
