module github.com/oncemill/oncemill/console

go 1.26.0

require github.com/oncemill/oncemill v0.0.0

replace github.com/oncemill/oncemill => ../
