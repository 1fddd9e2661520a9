module satchel

go 1.18
