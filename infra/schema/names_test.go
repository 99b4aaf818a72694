package schema

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNames(t *testing.T) {
	for _, test := range []struct {
		name            string
		resources, data []string
		want            string // kind resource, in the order of kinds
	}{
		{"the prefix goes", []string{"aws_s3_bucket", "aws_vpc"}, nil, "S3Bucket s3buckets, Vpc vpcs"},
		{"plurals as Kubernetes guesses them", []string{"x_policy", "x_alias"}, nil, "Alias aliases, Policy policies"},
		{"nothing but a prefix", []string{"external"}, []string{"http"}, "DataHttp datahttps, External externals"},
		{"a data source of the same name", []string{"aws_ami"}, []string{"aws_ami"}, "Ami amis, DataAmi dataamis"},
		{"two prefixes", []string{"google_disk", "googlebeta_disk"}, nil, "GoogleDisk googledisks, GooglebetaDisk googlebetadisks"},
		{"a resource that looks like a data source", []string{"aws_data_ami"}, []string{"aws_ami"}, "AwsDataAmi awsdataamis, DataAwsAmi dataawsamis"},
		{"a digit first", []string{"aws_2fa"}, nil, "Aws2fa aws2fas"},
		{"apart only by letters that names do not have", []string{"a_b_1", "a_b1"}, nil, "AB1Xf427ad41 ab1xf427ad41s, AB1Xfd547ef9 ab1xfd547ef9s"},
		{"a plural and its singular", nil, []string{"aws_subnet", "aws_subnets"}, "DataSubnet datasubnets, DataSubnets datasubnetses"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, n := range Names(test.resources, test.data) {
				got = append(got, n.Kind+" "+n.Plural)
			}
			if diff := cmp.Diff(test.want, strings.Join(got, ", ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNamesForClients(t *testing.T) {
	names := Names([]string{"aws_prefix", "aws_prefix_list"}, []string{"aws_subnet", "aws_subnets"})
	want := []Name{
		{Type: "aws_prefix_list", Kind: "AwsPrefixList", Plural: "awsprefixlists", Singular: "awsprefixlist"},
		{Type: "aws_subnet", Data: true, Kind: "DataSubnet", Plural: "datasubnets", Singular: "datasubnet"},
		{Type: "aws_subnets", Data: true, Kind: "DataSubnets", Plural: "datasubnetses", Singular: "datasubnetses"},
		{Type: "aws_prefix", Kind: "Prefix", Plural: "prefixs", Singular: "prefix"},
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

// TestNamesAreUnique: for any type names, kinds are unique and valid, and do not depend on the
// order.
func TestNamesAreUnique(t *testing.T) {
	pieces := []string{"a", "b", "data", "list", "1", "s", "endpoint", "endpoints", "B", "_", "-", "é", "xf427ad41"}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		draw := func() []string {
			var all []string
			for range r.IntN(12) {
				name := pieces[r.IntN(3)]
				for range r.IntN(4) {
					name += []string{"", "_"}[r.IntN(2)] + pieces[r.IntN(len(pieces))]
				}
				all = append(all, name)
			}
			slices.Sort(all)
			return slices.Compact(all)
		}
		resources, data := draw(), draw()
		names := Names(resources, data)
		seen := map[string]string{}
		for _, n := range names {
			words := []string{"kind " + strings.ToLower(n.Kind), "resource " + n.Plural}
			if n.Singular != n.Plural {
				words = append(words, "resource "+n.Singular)
			}
			for _, word := range append(words, "kind "+strings.ToLower(n.Kind)+"list") {
				if other := seen[word]; other != "" {
					t.Fatalf("seed %d: %s is of %s and of %s", seed, word, other, n.Type)
				}
				seen[word] = n.Type
			}
			if n.Plural != Plural(n.Kind) {
				t.Fatalf("seed %d: the resource of kind %s is %s, but Plural returns %s", seed, n.Kind, n.Plural, Plural(n.Kind))
			}
			if bad := validation.IsDNS1035Label(n.Plural); len(bad) > 0 {
				t.Fatalf("seed %d: %s is called %s: %v", seed, n.Type, n.Plural, bad)
			}
		}
		r.Shuffle(len(resources), func(i, j int) { resources[i], resources[j] = resources[j], resources[i] })
		if diff := cmp.Diff(names, Names(resources, data)); diff != "" {
			t.Fatalf("seed %d: in another order: %s", seed, diff)
		}
	}
}
