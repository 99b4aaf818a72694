// Package alike has the same work done by OpenTofu and by Atoll, and compares what both planned, what
// both made of it and what is left: generated resources of the test providers with references among them,
// and generated steps of change, each planned and carried out by both.
//
// A configuration comes from a seed and nothing else, so that what differs can be looked at again. Nothing
// that differs is left out of the comparison: see Differences.
package alike
