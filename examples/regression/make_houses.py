import csv, random

random.seed(1)
with open("houses.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["area", "rooms", "age", "town", "price"])
    for _ in range(2000):
        area, rooms, age = random.uniform(30, 200), random.randint(1, 7), random.uniform(0, 80)
        town = random.choice(["north", "south"])
        price = 2.0 * area + 15 * rooms - 0.8 * age + (40 if town == "north" else 0) + random.gauss(0, 5)
        table.writerow([f"{area:.1f}", rooms, f"{age:.1f}", town, f"{price:.2f}"])
