// Package differential runs the same generated configurations through OpenTofu and Atoll and compares the
// plans, the results of the applies, the states and the providers' objects. A configuration has resources of
// the test providers with references among them. Generated steps change it, and both plan and apply each step.
// `go run ./bench -what tofu-alike` runs it.
//
// A configuration depends on its seed only, so that a difference can be reproduced. The comparison excludes
// nothing: see Differences. It may import the API types, infra's schema and plan packages, and client-go.
package differential
